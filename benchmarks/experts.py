"""What does a mixture of experts learn, are its experts used alike, and what does it cost that they are at hosts?

    python -m benchmarks.experts                     # smoke.toml, with the demo's text where its own is not
    python -m benchmarks.experts --run RUN.toml --overrides FILE.toml --seeds 0 1 2
    python -m benchmarks.experts --parts lines death

`calls`: how long 512 tokens take through experts in two other processes, beside hivemind's (`lib/expert_calls.py`).
`lines`: what four trainers and four hosts on home lines reach of what these carry; needs root (`lib/expert_lines.py`).
`death`: what it costs that all processes of one of two hosts are killed (`lib/expert_deaths.py`).
`memory`: a model of which no process may hold more than a quarter (`lib/expert_memory.py`).
`learning`: in one process, by the plain loop (`lib/mixture.py`), every way on the same batches in the same order:

- the mixture as the run has it;
- `dense`: the same run without `[experts]`, whose feed-forward networks have as many channels as the experts that a
  token goes to have together, so that a token costs as many operations (the gates aside);
- `without the term`: the mixture with `experts.aux_loss_weight = 0`;
- `hosts`: the mixture, whose experts are at hosts; tokens and gradients travel in 8 bits (`lib/simulated_hosts.py`);
- `slow`, `slower`: the same with 300 ms, or a second, added to each call, and one call in ten never answered.

Balance is how many tokens the most used expert of a layer gets, over the mean, in the last steps together.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib import expert_calls
from benchmarks.lib.expert_deaths import after_kill
from benchmarks.lib.expert_lines import carried
from benchmarks.lib.expert_memory import divided
from benchmarks.lib.mixture import PlainLoop
from benchmarks.lib.network import read_network
from benchmarks.lib.peers import end_on_signal
from benchmarks.lib.simulated_hosts import Trouble, simulated
from dedloc_kit.config.loading import load_run, parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.experts.calls import Answers, Cell, Experts, Ticket
from dedloc_kit.experts.mixture import connect
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.tasks.batches import batches_of
from dedloc_kit.machine.home import home
from dedloc_kit.organizer.prepare import prepare_demo

IN_FLIGHT = (1, 3)
"""Microbatches that each trainer has on its way: of a volunteer with one device, and with three."""
MICROBATCH = 16
LAST = 100
"""Steps over which balance is measured."""
MIXTURE, DENSE, WITHOUT = "mixture", "dense", "without the term"
HOSTS, SLOW, SLOWER = "hosts", "slow", "slower"
TROUBLES = {HOSTS: Trouble(), SLOW: Trouble(0.3, 0.1), SLOWER: Trouble(1.0, 0.1)}
BESIDE = {HOSTS: MIXTURE, SLOW: HOSTS, SLOWER: HOSTS, MIXTURE: DENSE}
"""With which way the held-out loss of a way is compared."""
_ROW = "{:>6}{:>20}{:>16}{:>24}{:>10}{:>14}"
_MEMORY_ROW = "{:>26}{:>10}{:>10}{:>10}{:>10}{:>10}"


class Counted:
    """Experts, and how many tokens each is asked for."""

    def __init__(self, experts: Experts) -> None:
        self._experts = experts
        self.tokens: dict[int, Tensor] = {}

    def alive(self, layer: int) -> Tensor:
        return self._experts.alive(layer)

    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        if keep:
            counted = self.tokens.setdefault(layer, torch.zeros(self._experts.alive(layer).shape))
            for cell, given in inputs.items():
                counted[cell] += len(given)
        return self._experts.forward(layer, inputs, keep)

    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> Mapping[Cell, Tensor]:
        return self._experts.backward(layer, ticket, gradients)

    def most_over_mean(self) -> float:
        """Of the layer where it is largest; counts anew from here."""
        counts, self.tokens = self.tokens.values(), {}
        return max(float(each.max() / each.mean()) for each in counts)


@dataclass(frozen=True)
class Learned:
    """What one way came to with one seed."""

    seed: int
    way: str
    held_out: float
    """Loss after the last step."""
    most_used_over_mean: float | None
    seconds: float
    """Of the processor."""
    simulated_seconds: float | None
    """That the steps would have taken with such hosts."""


def ways(run: RunConfig) -> dict[str, RunConfig]:
    """The run as it is, and as it is compared."""
    assert run.experts is not None
    values = run.model_dump(mode="json")
    model = {**run.task.options.get("model", {}), "intermediate_size": run.experts.top_k * run.experts.hidden}
    dense: dict[str, Any] = {**values, "experts": None, "task": {**values["task"], "model": model}}
    without = {**values, "experts": {**values["experts"], "aux_loss_weight": 0.0}}
    return {MIXTURE: run, DENSE: parse_run(dense), WITHOUT: parse_run(without), **dict.fromkeys(TROUBLES, run)}


def learn(run: RunConfig, way: str, steps: int) -> Learned:
    """Train for so many steps."""
    task = create_task(run)
    loop = PlainLoop(run, task)
    # One seed for all ways, whatever the runs are called.
    batches = batches_of(run, task, MICROBATCH, seed_of("benchmark", run.seed), print)
    began, counted, before, simulated_seconds = time.process_time(), None, _nothing, None
    with ExitStack() as stack:
        if loop.bank is not None:
            asked: Experts = loop.bank
            if way in TROUBLES:
                hosts = stack.enter_context(simulated(run, loop.bank, "8bit", TROUBLES[way]))
                asked, before = hosts.experts, hosts.microbatch_begins
            connect(loop.model, counted := Counted(asked))
        for step in range(steps):
            if counted is not None and step == steps - LAST:
                counted.tokens.clear()
            loop.take(_global_batch(batches, run.global_batch), before)
        if way in TROUBLES:
            simulated_seconds = round(hosts.seconds, 1)
    seconds = time.process_time() - began
    if loop.bank is not None:
        connect(loop.model, loop.bank)
    balance = counted.most_over_mean() if counted is not None else None
    return Learned(run.seed, way, task.evaluate(loop.model).loss, balance, round(seconds, 1), simulated_seconds)


def _global_batch(batches: Iterator[Batch], samples: int) -> list[Batch]:
    return list(islice(batches, samples // MICROBATCH))


def _nothing() -> None:
    pass


def main() -> int:
    options = _parse()
    end_on_signal()
    found, failed = dict[str, Any](), False
    for part in (part for part in _PARTS if part in options.parts):
        try:
            for each in _PARTS[part](options):
                found |= each
                if options.json:
                    options.json.write_text(json.dumps(found, indent=1) + "\n")
        except UserError as error:  # the other parts do not need it
            print(f"{part}: {error}", file=sys.stderr)
            failed = True
    return int(failed)


def _lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.network is None:
        print("lines: left out, for they need --network RATE/ROUND-TRIP")
        return
    rows = []
    for in_flight in IN_FLIGHT:
        rows.append(each := carried(options.network, in_flight))
        print(
            f"lines: {in_flight} microbatch(es) of a trainer at once: {each.rate:.0f} tokens/s, {each.share:.2f} of "
            f"what the lines carry; the busiest line is full for {each.busiest:.2f}; {each.failed} experts failed; "
            f"CPU/all {each.cores:.2f} of {os.cpu_count()}, load {each.load:.0f}",
            flush=True,
        )
    yield {"wire_share": rows[0].share, "lines": [asdict(each) for each in rows]}


def _calls(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    ours, theirs = expert_calls.ours(), expert_calls.with_hivemind()
    speedup = theirs.both / ours.both
    print(
        f"calls: {ours.forward * 1e3:.0f} ms there and {ours.backward * 1e3:.0f} ms back, hivemind "
        f"{theirs.forward * 1e3:.0f} and {theirs.backward * 1e3:.0f}: {speedup:.0f} times as fast; "
        f"load {os.getloadavg()[0]:.0f}",
        flush=True,
    )
    yield {"speedup_over_hivemind": speedup, "calls": {"ours": asdict(ours), "hivemind": asdict(theirs)}}


def _death(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    death = after_kill()
    print(
        f"death: {death.nan} losses are no numbers, {death.failed_steps} failed steps; a trainer waited for experts "
        f"{death.wait_seconds:.1f} s more than usual ({death.usual_seconds:.2f} s a microbatch); the longest step took "
        f"{death.longest_step:.1f} s, usual are {death.usual_step:.1f}; load {os.getloadavg()[0]:.0f}",
        flush=True,
    )
    yield {"after_kill": asdict(death)}


def _memory(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    found = divided(options.hosts, options.width, options.memory_steps)
    share = found.share / 1e6
    print(
        f"memory: {found.parameters / 1e6:.0f} million parameters of experts, the whole state {found.state / 1e6:.0f} "
        f"MB; no process may hold more than {share:.0f} MB beyond one with next to no parameters"
    )
    print(_MEMORY_ROW.format("MB of the largest process", "beyond", "own", "VmHWM", "VmData", "limit"))
    for peer in found.peers:
        sizes = [f"{size / 1e6:.0f}" for size in (peer.beyond, peer.own, peer.high, peer.data)]
        print(_MEMORY_ROW.format(peer.peer, *sizes, "" if peer.limit is None else f"{peer.limit / 1e6:.0f}"))
    print(
        f"memory: {found.most.peer} took most, 1/{found.state / max(1, found.most.beyond):.1f} of the state; held-out "
        f"loss by step {found.held_out}; load {os.getloadavg()[0]:.0f}",
        flush=True,
    )
    yield {"memory": asdict(found)}


def _learning(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    torch.set_num_threads(options.threads)
    given = options.run is not None
    base = load_run(options.run, options.overrides) if given else prepare_demo("experts", home() / "demo" / "experts")
    if base.global_batch % MICROBATCH:
        raise UserError(f"the run's global_batch must be a multiple of {MICROBATCH}")
    if options.steps:
        base = base.model_copy(update={"optimizer": base.optimizer.model_copy(update={"total_steps": options.steps})})
    steps, found = base.optimizer.total_steps, list[Learned]()
    print(_ROW.format("seed", "", "held-out loss", "most used over mean", "CPU s", "simulated s"))
    for seed in options.seeds:
        for way, run in ways(base.model_copy(update={"seed": seed})).items():
            if way not in options.ways:
                continue
            found.append(each := learn(run, way, steps))
            balance = "" if each.most_used_over_mean is None else f"{each.most_used_over_mean:.2f}"
            print(
                _ROW.format(seed, way, f"{each.held_out:.4f}", balance, each.seconds, each.simulated_seconds or ""),
                flush=True,
            )
            yield summary(found, steps)
    for told, ratio in summary(found, steps)["over"].items():
        print(f"held-out loss, {told}: {ratio:.3f}")


_PARTS = {"lines": _lines, "calls": _calls, "death": _death, "memory": _memory, "learning": _learning}
"""In this order: what forks comes before what computes."""


def over(found: list[Learned], way: str, other: str) -> float | None:
    """The held-out loss of one way over that of another: the median over the seeds that both have."""
    held_out = {(each.seed, each.way): each.held_out for each in found}
    ratios = [
        loss / held_out[seed, other]
        for (seed, its), loss in held_out.items()
        if its == way and (seed, other) in held_out
    ]
    return round(statistics.median(ratios), 4) if ratios else None


def summary(found: list[Learned], steps: int) -> dict[str, Any]:
    """What a file keeps: medians over the seeds, and all of it."""

    def median(way: str, field: str) -> float | None:
        values = [getattr(each, field) for each in found if each.way == way]
        return statistics.median(values) if values else None

    return {
        "steps": steps,
        "most_used_over_mean": median(MIXTURE, "most_used_over_mean"),
        "most_used_over_mean_without": median(WITHOUT, "most_used_over_mean"),
        "held_out": {way: median(way, "held_out") for way in dict.fromkeys(each.way for each in found)},
        "over": {f"{way} over {other}": ratio for way, other in BESIDE.items() if (ratio := over(found, way, other))},
        "learned": [asdict(each) for each in found],
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=list(_PARTS), metavar="PART", help="%(choices)s")
    parser.add_argument("--network", default="50mbit/60ms", help="of lines: a rate and a round trip; loopback: none")
    parser.add_argument("--run", type=Path, metavar="RUN.toml", help="with [experts]; default: the recipe's small form")
    parser.add_argument("--overrides", type=Path, metavar="FILE.toml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="train once with each")
    parser.add_argument("--steps", type=int, help="global steps, after which the rate is zero; default: the run's")
    known = [MIXTURE, DENSE, WITHOUT, *TROUBLES]
    parser.add_argument("--ways", nargs="+", choices=known, default=known, metavar="WAY", help="%(choices)s")
    parser.add_argument("--hosts", type=int, default=8, help="of the part 'memory', with six experts for each")
    parser.add_argument("--width", type=int, default=512, help="of the part 'memory'")
    parser.add_argument("--memory-steps", type=int, default=4, help="global steps of the part 'memory'")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    read_network(parser, options)
    return options


if __name__ == "__main__":
    sys.exit(main())
