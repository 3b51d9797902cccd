"""How well servers share the layers of a model when they come and go, in simulated time.

Eight servers of speeds 1:1:2:2:4:4:8:8, with room for three layers for each unit of speed, and a model of 48 layers. In
an hour each leaves at random times and comes back, then comes an hour in which nobody does. Compared is the bottleneck,
each second, with that of the best assignment of those who are there (a mixed integer program; loading is in neither's
favour: it counts as being there), and with newcomers who never move.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.lib.serving_swarm import EXPIRY, LOAD, LOOK, ServingSwarm
from dedloc_kit.blocks.plans.plan import SECOND_LOOK

LAYERS = 48
SPEEDS = (1, 1, 2, 2, 4, 4, 8, 8)
MEMORY = 3
"""Layers that fit, for each unit of speed."""
HOUR = 3600
HERE, AWAY = 1800.0, 600.0
"""Mean seconds that a server stays, and is away."""
GOOD = 0.85
REACTION = EXPIRY + SECOND_LOOK + LOAD + 2 * LOOK
"""Seconds until one move can have answered a server's death."""
_ROW = "{:>5}{:>8}{:>9}{:>9}{:>9}{:>7}{:>9}{:>7}{:>11}{:>12}{:>7}{:>12}"


@dataclass(frozen=True)
class Hour:
    """One seed.

    :ivar ratio: mean of the bottleneck over the best one, in seconds in which there is one above 0
    :ivar good: part of those seconds in which it is at least `GOOD`
    :ivar reacted: mean ratio once `REACTION` seconds have passed since somebody last came or went
    :ivar unmoved: the mean ratio if nobody ever moves
    :ivar calm, settled: mean ratio, and that of the last second, in the hour in which nobody comes or goes
    :ivar gap_seconds, longest_gap: with a layer without server that somebody could serve, in the first hour
    :ivar calm_gap_seconds: the same, after the first ten minutes of the second hour
    :ivar moves, most_calm_moves: in the first hour by all, in the second by the one server that moves most
    """

    seed: int
    ratio: float
    good: float
    reacted: float
    unmoved: float
    calm: float
    settled: float
    gap_seconds: int
    longest_gap: int
    calm_gap_seconds: int
    moves: int
    most_calm_moves: int


def hours(seeds: int) -> list[Hour]:
    """Prints them as they come."""
    names = (
        "ratio",
        f">= {GOOD}",
        "reacted",
        "unmoved",
        "calm",
        "settled",
        "gap s",
        "longest s",
        "calm gap s",
        "moves",
        "calm moves",
    )
    print(_ROW.format("seed", *names))
    found = []
    for seed in range(seeds):
        found.append(balance(seed))
        shown = (f"{value:.2f}" if isinstance(value, float) else value for value in asdict(found[-1]).values())
        print(_ROW.format(*shown), flush=True)
    for name in ("ratio", "good", "reacted", "unmoved", "calm", "settled"):
        values = [value for hour in found if not math.isnan(value := getattr(hour, name))]
        if not values:
            continue
        print(f"{name}: median {statistics.median(values):.3f}, {min(values):.3f} to {max(values):.3f}")
    return found


def balance(seed: int) -> Hour:
    moving, unmoved = _hours(seed, moves=True), _hours(seed, moves=False)
    churn, calm = moving.ratios[:HOUR], moving.ratios[HOUR:]
    late = [ratio for now, ratio in enumerate(churn, 1) if all(not 0 <= now - at < REACTION for at in moving.changes)]
    gaps = "".join("g" if ratio == 0 else " " for ratio in churn)
    names = [name for now, name in moving.moved if now > HOUR]
    return Hour(
        seed=seed,
        ratio=_mean(churn),
        good=_mean([None if ratio is None else float(ratio >= GOOD) for ratio in churn]),
        reacted=_mean(late),
        unmoved=_mean(unmoved.ratios[:HOUR]),
        calm=_mean(calm),
        settled=_mean(calm[-1:]),
        gap_seconds=gaps.count("g"),
        longest_gap=max(map(len, gaps.split()), default=0),
        calm_gap_seconds=sum(ratio == 0 for ratio in calm[600:]),
        moves=len(moving.moved) - len(names),
        most_calm_moves=max(map(names.count, names), default=0),
    )


def _mean(ratios: Sequence[float | None]) -> float:
    """NaN if there was nothing to reach."""
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.fmean(known) if known else math.nan


@dataclass
class _Watched:
    """Two hours of a swarm: the ratio of each second (None where even the best is 0), when somebody came or went, and
    when who moved."""

    ratios: list[float | None]
    changes: list[int]
    moved: list[tuple[int, str]]


def _hours(seed: int, moves: bool) -> _Watched:
    chance = random.Random(seed)
    swarm = ServingSwarm(LAYERS, moves)
    speeds = {f"{seed} server {number}": speed for number, speed in enumerate(SPEEDS)}
    next_change = {}
    for name, speed in speeds.items():
        swarm.join(name, speed, MEMORY * speed)
        for _ in swarm.run(20):  # one after the other, before the hour
            pass
        next_change[name] = chance.expovariate(1 / HERE)
    for _ in swarm.run(HOUR // 2):
        pass
    begun = swarm.now
    swarm.moved.clear()
    watched = _Watched([], [], [])
    for now in swarm.run(2 * HOUR):
        since = now - begun
        for name, speed in speeds.items():
            if since <= HOUR and since >= next_change[name]:
                here = name in swarm.records
                _change(swarm, name, speed, here)
                watched.changes.append(since)
                next_change[name] = since + chance.expovariate(1 / (AWAY if here else HERE))
        best = best_bottleneck(tuple(sorted(speeds[name] for name in swarm.records)))
        watched.ratios.append(swarm.bottleneck() / best if best else None)
    watched.moved = [(now - begun, name) for now, name, _ in swarm.moved]
    return watched


def _change(swarm: ServingSwarm, name: str, speed: int, here: bool) -> None:
    if here:
        swarm.leave(name)
    else:
        swarm.join(name, speed, MEMORY * speed)


@cache
def best_bottleneck(speeds: tuple[int, ...]) -> float:
    """Of all assignments of spans to servers of these speeds."""
    if MEMORY * sum(speeds) < LAYERS:
        return 0.0
    choices = [(i, begin) for i, speed in enumerate(speeds) for begin in range(LAYERS - MEMORY * speed + 1)]
    covers = np.zeros((LAYERS, len(choices) + 1))
    chosen = np.zeros((len(speeds), len(choices) + 1))
    for place, (i, begin) in enumerate(choices):
        covers[begin : begin + MEMORY * speeds[i], place] = speeds[i]
        chosen[i, place] = 1
    covers[:, -1] = -1  # the last variable is the bottleneck
    found = milp(
        c=[*[0.0] * len(choices), -1.0],
        constraints=[LinearConstraint(covers, lb=0), LinearConstraint(chosen, lb=1, ub=1)],
        integrality=np.ones(len(choices) + 1),  # speeds are whole numbers, so it is one too
        bounds=Bounds(0, [*[1.0] * len(choices), float(sum(speeds))]),
    )
    assert found.success, found.message
    return float(round(-found.fun))
