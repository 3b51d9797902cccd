"""What pipelines of stages reach over lines as people have them, beside fixed pipelines and the optimum."""

import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lib.best_pipeline import StagePeer, best_rate, in_chains
from benchmarks.lib.network import Line
from benchmarks.lib.pipeline_network import AWAY_SECONDS, Measured, Setting, run

STAGES, EACH = 3, 3
SECONDS = (4.0, 2.0, 1.0)
"""That devices of speeds 1:2:4 take for a microbatch: the quickest as long as all where they are equal."""
MBIT = (20.0, 100.0, 500.0)
REACHABLE = 3
"""Of nine peers, where the others are in client mode: one of each stage."""
CASES = ("equal", "uneven", "deaths", "clients")
NEAR = 1.7
"""Cores of two: from there on the machine is measured."""


@dataclass(frozen=True)
class Length:
    """How long is measured: global steps, the seconds of one at the optimum, and those in which peers die."""

    rounds: int
    step_seconds: float
    dying_seconds: float


def equal(line: Line) -> tuple[StagePeer, ...]:
    """Nine equal peers, in order of their chains so that these are alike."""
    return in_chains([StagePeer(stage, 1.0, line.up_mbit) for _ in range(EACH) for stage in range(STAGES)])


def uneven(seed: int) -> tuple[StagePeer, ...]:
    """Speeds and lines are mixed at random over the stages."""
    chance, count = random.Random(seed), STAGES * EACH // len(SECONDS)
    speeds, lines = list(SECONDS) * count, list(MBIT) * count
    chance.shuffle(speeds)
    chance.shuffle(lines)
    places = [stage for _ in range(EACH) for stage in range(STAGES)]
    return in_chains([StagePeer(*each) for each in zip(places, speeds, lines, strict=True)])


def clients(line: Line) -> tuple[StagePeer, ...]:
    """As `equal`, but most cannot be reached."""
    peers = equal(line)
    return tuple(replace(peer, client_mode=number >= REACHABLE) for number, peer in enumerate(peers))


def network_rows(line: Line, cases: Sequence[str], length: Length, seed: int) -> Iterator[dict[str, Any]]:
    """Of each case, printed as it comes. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="dedloc-pipeline-") as name:
        runs = iter(range(10**6))

        def measured(peers: Sequence[StagePeer], **how: Any) -> Measured:
            batch = max(STAGES * EACH, round(best_rate(peers) * length.step_seconds))
            how = {"steps": length.rounds, "seed": seed, **how}
            setting = Setting(tuple(peers), batch, line.delay_ms, **how)
            found = run(setting, Path(name) / str(next(runs)))
            kind = " of fixed pipelines" * setting.fixed + f" with {found.deaths} deaths" * setting.dying
            lost, twice, partly = found.counts
            text = f"{found.rate:.2f} /s in {setting.steps} steps{kind}; lost {lost}, twice {twice}, partly {partly}, "
            print(f"{text}again {found.again}; load {found.load:.0f}", file=sys.stderr, flush=True)
            return found

        alike, mixed = equal(line), uneven(seed)
        base = measured(alike) if {"equal", "deaths", "clients"} & set(cases) else None
        if "equal" in cases:
            assert base is not None
            yield _row("equal", alike, base, measured(alike, fixed=True))
        if "uneven" in cases:
            yield _row("uneven", mixed, measured(mixed), measured(mixed, fixed=True))
        if "deaths" in cases:
            dying = partial(measured, alike, dying=True, steps=math.ceil(length.dying_seconds / length.step_seconds))
            yield _row("deaths", alike, dying(), dying(fixed=True), base)
        if "clients" in cases:
            yield _row("clients", alike, measured(clients(line)), None, base)


def extra_per_death(ours: Measured, base: float) -> tuple[float, float]:
    """Seconds that a death costs in all, and what of that is the dead peer's share of the work: what its stage lacks
    while it is away, and what it had computed for a step and others compute again.

    :param base: microbatches a second without deaths
    """
    extra = (ours.whole / ours.rate - ours.whole / base) / ours.deaths
    return extra, AWAY_SECONDS / EACH + ours.again / ours.deaths / EACH


def _row(
    case: str, peers: Sequence[StagePeer], ours: Measured, chained: Measured | None, base: Measured | None = None
) -> dict[str, Any]:
    best = best_rate(peers)
    row: dict[str, Any] = {
        "case": case,
        "rate": ours.rate,
        "optimum": best,
        "fixed": None if chained is None else chained.rate,
        **ours.counts._asdict(),
        "base": None if base is None else base.rate,
        "rates": ours.rates,
        "fixed_rates": [] if chained is None else chained.rates,
        "deaths": ours.deaths,
        "again": ours.again,
        "busy": ours.busy,
        "cores": ours.cores,
        "load": ours.load,
        "troubles": ours.troubles,
    }
    text = f"{case:8}{ours.rate:6.2f} /s ({min(ours.rates):.2f} to {max(ours.rates):.2f} in a step)"
    text += f", {ours.rate / best:.2f} of the optimum"
    if chained is not None:
        text += f", {ours.rate / chained.rate:.2f} of fixed pipelines ({chained.rate:.2f} /s)"
    if base is not None:
        text += f", {ours.rate / base.rate:.2f} of equal peers that all live and are reached"
    print(text, flush=True)
    lost, twice, partly = ours.counts
    print(f"{'':8}lost {lost}, twice {twice}, partly {partly}; deaths {ours.deaths}, calls made again {ours.again}")
    if ours.deaths and base is not None:
        row["extra_seconds"], row["share_seconds"] = extra_per_death(ours, base.rate)
        row["base_rates"] = base.rates
        text = "a death costs {extra_seconds:.1f} s, of which {share_seconds:.1f} are its share of the work"
        print(f"{'':8}{text.format(**row)}")
    machine = f"CPU/all {ours.cores:.2f} of {os.cpu_count()}, load {ours.load:.1f}"
    note = ": this is rather the machine's rate" if ours.cores > NEAR else ""
    print(f"{'':8}devices busy {ours.busy:.2f}, {machine}{note}")
    if case == "clients" and base is not None:
        sent = [ours.sent[:REACHABLE], base.sent[:REACHABLE]]
        row["forwarders_bytes"], row["forwarders_bytes_reached"] = sent
        through, plain = (statistics.fmean(each) / 1e6 for each in sent)
        print(
            f"{'':8}a forwarder sends {through:.2f} MB for each microbatch of all, {plain:.2f} where all are reached; "
            f"{through * ours.rate * 8:.0f} of {peers[0].mbit:.0f} Mbit/s"
        )
    for trouble, count in ours.troubles.items():
        print(f"{'':8}{count} x {trouble}")
    return row
