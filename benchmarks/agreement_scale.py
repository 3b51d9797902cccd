"""Does every round of hundreds of peers end although members die, and how long does one take?

Real participants and relays, and the real plan of rows, over home lines in simulated time (lib/line_world.py); data are
counted and not computed, signatures are as long as RSA keys make them. In each round some peers die at a random moment:
they fall silent, or break off with --break-off. The model has 18 million values: parts and averages in 4 bits, sums of
rows in 8. Time for arithmetic is not counted.
"""

import argparse
import hashlib
import json
import math
import random
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.lib.agreeing_peer import Member, Shared
from benchmarks.lib.line_world import World
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.swarm.allreduce.plan import MAX_ROW, Plan
from dedloc_kit.swarm.consensus.electorate import Electorate
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.messages import Options
from dedloc_kit.swarm.consensus.records import Voter
from dedloc_kit.swarm.consensus.tree import Tree

VALUES = 18_000_000
MEGABIT = 1e6 / 8
LATE = 0.2
"""Seconds within which all begin."""
FIRST_GUESS = 15.0
"""Seconds that a round may take, before there was any: in these its peers die."""
LIMIT = 120.0
SAMPLES = (4, 12)
ROUNDS = ((64, 20), (256, 6), (math.inf, 3))
"""Up to how many peers how many rounds."""


def main() -> int:
    options = _parse()
    rows = [_measure(count, options) for count in options.peers]
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")
    return 0 if all(row["ended"] == row["rounds"] for row in rows) else 1


@dataclass
class Result:
    """What came of one round."""

    ended: bool
    seconds: float
    first: float
    counted: float
    epochs: int
    sent: float
    most_sent: int
    control: float
    most_control: int
    events: int
    cpu: float
    troubles: list[str]


def _measure(count: int, options: argparse.Namespace) -> dict[str, Any]:
    rng = random.Random(f"{options.seed} {count}")
    rounds = options.rounds or next(rounds for most, rounds in ROUNDS if count <= most)
    guess, results = FIRST_GUESS, list[Result]()
    for number in range(rounds):
        result = _round(count, rng, guess, options)
        results.append(result)
        guess = median(result.seconds for result in results)
        if options.verbose:
            print(f"    {count}, round {number}: {result}", flush=True)
    row: dict[str, Any] = {
        "peers": count,
        "rounds": rounds,
        "ended": sum(result.ended for result in results),
        "modelled_seconds": median(result.seconds for result in results),
        "slowest_seconds": max(result.seconds for result in results),
        "counted_share": fmean(result.counted for result in results),
        "epochs": fmean(result.epochs for result in results),
        "bytes_per_peer": fmean(result.sent for result in results),
        "most_bytes": max(result.most_sent for result in results),
        "control_bytes_per_peer": fmean(result.control for result in results),
        "most_control_bytes": max(result.most_control for result in results),
        "cpu_seconds": fmean(result.cpu for result in results),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "troubles": [f"round {n}: {why}" for n, result in enumerate(results) for why in result.troubles],
    }
    print(
        f"{count} peers, {rounds} rounds: {row['ended']} ended with one commit; {row['modelled_seconds']:.1f} s "
        f"(slowest {row['slowest_seconds']:.1f}), {row['epochs']:.1f} epochs, {row['counted_share']:.4f} counted; sent "
        f"{row['bytes_per_peer'] / 1e6:.1f} MB a peer (most {row['most_bytes'] / 1e6:.0f}), of it control "
        f"{row['control_bytes_per_peer'] / 1e6:.2f} MB (most {row['most_control_bytes'] / 1e6:.1f}); "
        f"{row['cpu_seconds']:.0f} s of processor, {row['memory'] / 1e9:.1f} GB",
        flush=True,
    )
    for trouble in row["troubles"]:
        print(f"    {trouble}")
    return row


def _round(count: int, rng: random.Random, guess: float, options: argparse.Namespace) -> Result:
    began = time.process_time()
    names = [f"Qm{hashlib.sha256(rng.randbytes(8)).hexdigest()[:44]}" for _ in range(count)]
    rates = {name: _rate(rng, options) for name in names}
    rates[names[0]] = options.fastest * MEGABIT
    able = {names[0], *rng.sample(names, round(options.reachable * count))}
    shared = _shared(names, rates, able, rng, options)
    world, shared.verbose = shared.world, options.trace
    members = {name: Member(shared, name) for name in names}
    dead = rng.sample(names[1:], round(options.deaths * count + rng.random() - 0.5))
    for name in names:
        world.at(rng.uniform(0, LATE), members[name].begin)
    for name in dead:
        world.at(rng.uniform(0, guess), _die, members, name)
    living = set(names) - set(dead)
    world.run(LIMIT, lambda: len(shared.ended) >= len(living) and living <= shared.ended.keys())
    ended = living <= shared.ended.keys()
    links = {shared.commits[name] for name in living if name in shared.commits}
    troubles = (
        [f"{len(living - shared.ended.keys())} did not end: {list(shared.aborts.items())[:3]}"] if not ended else []
    )
    troubles += [f"{len(links)} commits"] if len(links) != 1 else []
    troubles += [f"blamed: {each}" for each in shared.blamed[:3]]
    weight = sum(shared.samples.values())
    return Result(
        ended=ended and len(links) == 1,
        seconds=max((shared.ended.get(name, LIMIT) for name in living), default=LIMIT),
        first=min(shared.ended.values(), default=LIMIT),
        counted=sum(shared.samples[name] for name in shared.counted) / weight,
        epochs=sum("epoch" in what for _, _, what in shared.trace),
        sent=sum(world.sent.values()) / count,
        most_sent=max(world.sent.values()),
        control=sum(world.control.values()) / count,
        most_control=max(world.control.values()),
        events=world.events,
        cpu=time.process_time() - began,
        troubles=troubles,
    )


def _rate(rng: random.Random, options: argparse.Namespace) -> float:
    """Lognormal, nine in ten between the slowest and the fastest."""
    slowest, fastest = options.slowest * MEGABIT, options.fastest * MEGABIT
    middle, spread = math.log(slowest * fastest) / 2, math.log(fastest / slowest) / 2 / 1.645
    return float(min(fastest, max(slowest, math.exp(rng.gauss(middle, spread)))))


def _shared(
    names: list[str], rates: dict[str, float], able: set[str], rng: random.Random, options: argparse.Namespace
) -> Shared:
    lines = [rates[name] if name in able else 0.0 for name in names]
    layout = FlatLayout((), (), VALUES, VALUES)
    plan = Plan.of(names, layout, lines, math.ceil(len(names) / options.rows) if options.rows else MAX_ROW)
    samples = {name: rng.randint(*SAMPLES) for name in names}
    voters = {Voter(name, 1): 3 * samples[name] for name in names}
    coordinator = Voter(names[0], 1)
    head = hashlib.sha256(b"head").hexdigest()
    instance = Instance(
        "rounds-0123456789abcdef", "", 1000, head, (0, ""), "organizer", names[0], Electorate(voters, coordinator)
    )
    usual = median(rates[name] for name in able)
    ranking = sorted(
        (names[place] for place in plan.reducers), key=lambda name: (name != names[0], rates[name] < usual, name)
    )
    rows = tuple(tuple(names[place] for place in team) for team in plan.teams)
    tree = Tree(rows, tuple(ranking))
    minimum = sum(samples.values()) // 2
    limits = Options(minimum=minimum, patience=options.patience, limit=LIMIT)
    return Shared(World(rates), instance, plan, tree, limits, samples, options.break_off)


def _die(members: dict[str, Member], name: str) -> None:
    member = members[name]
    shared, world = member.shared, member.world
    what = "a reducer" if shared.places[name] in shared.plan.reducers else "a member"
    shared.note(name, f"dies, {what} of row {member.data.flow.row}")
    world.kill(name)
    if shared.break_off:
        for other in members.values():
            if name in other.neighbours or name in other.relay.neighbours:
                world.after(0.05, other.broke, name)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--peers", type=int, nargs="+", default=[64, 256, 1024])
    add("--rounds", type=int, help="so many in any case; 20 with 64 peers, 6 up to 256, 3 beyond as a rule")
    add("--deaths", type=float, default=0.02, help="the share of peers that die in a round")
    add("--reachable", type=float, default=0.3, help="the share of peers that reduce")
    add("--slowest", type=float, default=10.0, help="Mbit/s")
    add("--fastest", type=float, default=100.0, help="Mbit/s")
    add("--rows", type=int, help="so many in any case")
    add("--patience", type=float, default=3.0, help="seconds of silence after which a member is gone")
    add("--break-off", action="store_true", help="whoever dies closes its streams")
    add("--seed", type=int, default=0)
    add("--verbose", action="store_true", help="tell of each round")
    add("--trace", action="store_true", help="tell what happened in each round")
    add("--json", type=Path, help="a file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
