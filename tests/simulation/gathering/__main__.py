"""`python -m tests.simulation.gathering STORY SEED`: what happens there. `STORY FIRST COUNT`: which seeds fail.

`rounds.STORY` is a story of agreement, whose groups form by themselves.
"""

import sys
import time
from collections import Counter

from tests.simulation import stories as agreement
from tests.simulation.gathering.rounds import GatheredSimulation, tell_rounds
from tests.simulation.gathering.simulation import GatheringSimulation
from tests.simulation.gathering.stories import STORIES, tell
from tests.simulation.watch import Violation

ROUNDS = "rounds."


def one(name: str, seed: int) -> None:
    sim: GatheringSimulation | GatheredSimulation
    try:
        if name.startswith(ROUNDS):
            sim = GatheredSimulation(seed, name=name.removeprefix(ROUNDS))
            recovery = sim.run(agreement.STORIES[sim.name](sim))
        else:
            sim = GatheringSimulation(seed, name)
            sim.verbose = True
            recovery = sim.run(STORIES[name](sim))
        print(f"all together after {recovery:.1f} s")
    except Violation as error:
        print(error)
    for event in sim.trace:
        print("   ", *event)
    for process in sim.processes():
        print(process.name, process.chain.head.step, process.chain.head.previous[:8], process.peer.speed)


def many(name: str, first: int, count: int) -> None:
    began, waits, recoveries, wrong = time.process_time(), list[float](), list[float](), Counter[str]()
    groups = steps = 0
    for seed in range(first, first + count):
        try:
            if name.startswith(ROUNDS):
                rounds, recovery = tell_rounds(name.removeprefix(ROUNDS), seed)
                steps += len(rounds.watch.first)
            else:
                sim, recovery = tell(name, seed)
                waits += sim.waits
                groups, steps = groups + len(sim.groups), steps + len(sim.steps)
            recoveries.append(recovery)
        except Violation as error:
            wrong[str(error).split("(")[0][:20]] += 1
            print("   ", error)
    print(f"{name:14} {count} seeds, {time.process_time() - began:.1f} s, {groups} groups, {steps} steps; full to "
          f"commit {spread(waits)}, together {spread(recoveries)}; {dict(wrong) or 'right'}", flush=True)  # fmt: skip


def spread(seconds: list[float]) -> str:
    seconds.sort()
    return f"{seconds[len(seconds) // 2]:.1f} / {seconds[-1]:.1f} s" if seconds else "-"


if __name__ == "__main__":
    for each in list(STORIES) if sys.argv[1] == "all" else sys.argv[1].split(","):
        if len(sys.argv) > 3:
            many(each, int(sys.argv[2]), int(sys.argv[3]))
        else:
            one(each, int(sys.argv[2]))
