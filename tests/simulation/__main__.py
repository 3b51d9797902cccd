"""`python -m tests.simulation STORY SEED`: what happens in one seed. `STORY FIRST COUNT`: which seeds fail."""

import sys
import time
from collections import Counter

from tests.simulation.simulation import Simulation, Violation
from tests.simulation.stories import STORIES, tell


def one(name: str, seed: int) -> None:
    sim = Simulation(seed, name=name)
    try:
        print(f"next step after {sim.run(STORIES[name](sim)):.1f} s")
    except Violation as error:
        print(error)
    for event in sim.trace:
        print("   ", *event)
    for process in sim.processes():
        print(process.name, process.chain.rank, process.head.previous[:8], process.votes.as_voter(process.head))


def many(name: str, first: int, count: int) -> None:
    began, recoveries, wrong = time.process_time(), [], Counter[str]()
    commits = resets = 0
    for seed in range(first, first + count):
        try:
            sim, recovery = tell(name, seed)
            recoveries.append(recovery)
            commits += sum(sim.watch.made.values())
            resets += len(sim.watch.resets)
        except Violation as error:
            wrong[str(error).split(":")[0]] += 1
            print("   ", error)
    recoveries.sort()
    spread = f"{recoveries[len(recoveries) // 2]:.1f} / {recoveries[-1]:.1f} s" if recoveries else "-"
    print(f"{name:20} {count} seeds, {time.process_time() - began:.1f} s, {commits} commits, {resets} resets; "
          f"next step {spread}; {dict(wrong) or 'right'}", flush=True)  # fmt: skip


if __name__ == "__main__":
    names = list(STORIES) if sys.argv[1] == "all" else sys.argv[1].split(",")
    if len(sys.argv) > 3:
        for each in names:
            many(each, int(sys.argv[2]), int(sys.argv[3]))
    else:
        one(names[0], int(sys.argv[2]))
