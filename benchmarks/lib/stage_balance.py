"""How well peers share the stages of a pipeline when they come and go, in simulated time.

Nine peers of speeds 1:1:1:2:2:2:4:4:4 on lines of 20, 100 and 500 Mbit/s mixed at random, three stages of different
size. In an hour each leaves at random times and comes back. Compared is the bottleneck, each second, with that of the
best assignment of those who are there (a mixed integer program; downloads are in neither's favour: who loads counts as
being there), and with newcomers who never move. Then, without chance, six, two and one equal peers.
"""

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.lib.stage_swarm import DELAY, EXPIRY, LOOK, StageSwarm
from dedloc_kit.blocks.plans.stages import SECOND_LOOK, WINDOW, Stage

STATE = 100e6
"""Bytes to download of a stage of middling size."""
SHARES = (0.3, 0.4, 0.3)
STAGES = tuple(Stage(share, STATE * share * len(SHARES)) for share in SHARES)
SPEEDS = (1, 1, 1, 2, 2, 2, 4, 4, 4)
LINES = (20e6 / 8, 100e6 / 8, 500e6 / 8)
HOUR = 3600
HERE, AWAY = 1200.0, 600.0
"""Mean seconds that a peer stays, and is away."""
REACTION = EXPIRY + DELAY + SECOND_LOOK + WINDOW + 2 * LOOK
"""Seconds in which somebody who could move to a bare stage has begun to at the latest."""
_ROW = "{:>5}{:>8}{:>9}{:>9}{:>8}{:>10}{:>11}{:>7}{:>10}"


@dataclass(frozen=True)
class Hour:
    """One seed.

    :ivar ratio: mean of the bottleneck over the best one, in seconds in which there is one above 0
    :ivar unmoved: the same if nobody ever moves
    :ivar best: mean bottleneck of the best assignment
    :ivar bare: seconds in which some stage had nobody who held it although there were enough peers
    :ivar unanswered: of these, those after which somebody could have moved for REACTION seconds, and nobody had
    :ivar longest: the longest of those spells, with the download
    :ivar moves: of all peers
    :ivar too_soon: of these, those within ten minutes of another one of the same peer, but to a stage that seemed bare
    """

    seed: int
    ratio: float
    unmoved: float
    best: float
    bare: int
    unanswered: int
    longest: int
    moves: int
    too_soon: int


@dataclass(frozen=True)
class Settling:
    """Equal peers that begin with so many at each stage.

    :ivar began, ended: the bottleneck over the best one, at first and in the end
    :ivar seconds: until it was at least 0.9, downloads included; None if it never was
    :ivar moves: that it took
    :ivar download: seconds of these, for the downloads of all moves together
    """

    peers: tuple[int, ...]
    began: float
    ended: float
    seconds: int | None
    moves: int
    download: float


def hours(seeds: int) -> list[Hour]:
    """Prints them as they come."""
    print(_ROW.format("seed", "ratio", "unmoved", "best", "bare s", "longest s", "unanswered", "moves", "too soon"))
    found = []
    for seed in range(seeds):
        found.append(hour := balance(seed))
        shown = (f"{hour.ratio:.2f}", f"{hour.unmoved:.2f}", f"{hour.best:.2f}", hour.bare, hour.longest)
        print(_ROW.format(seed, *shown, hour.unanswered, hour.moves, hour.too_soon), flush=True)
    for name in ("ratio", "unmoved"):
        values = [getattr(hour, name) for hour in found]
        print(f"{name}: median {statistics.median(values):.3f}, {min(values):.3f} to {max(values):.3f}")
    return found


def figures(seeds: int) -> list[dict[str, object]]:
    """Rows of both cases."""
    rows: list[dict[str, object]] = [{"case": "balance", **asdict(hour)} for hour in hours(seeds)]
    settled = settle((6, 2, 1))
    print(
        f"{', '.join(map(str, settled.peers))} equal peers: {settled.began:.2f} of the best assignment at first, "
        f"{settled.ended:.2f} in the end, 0.9 after {settled.seconds} s, of which {settled.download:.0f} s for "
        f"{settled.moves} downloads"
    )
    return [*rows, {"case": "settle", **asdict(settled)}]


def settle(peers: tuple[int, ...], line: float = LINES[1]) -> Settling:
    """How long until so many equal peers have found the best assignment."""
    stages = [Stage(1 / len(peers), STATE)] * len(peers)
    swarm = StageSwarm(stages)
    for stage, number in itertools.chain.from_iterable(((k, i) for i in range(n)) for k, n in enumerate(peers)):
        swarm.join(f"{stage} {number}", 1.0, line, stage)
    best = best_bottleneck((1,) * sum(peers), tuple(stage.share for stage in stages))
    began, seconds = swarm.bottleneck() / best, None
    for now in swarm.run(HOUR // 2):
        if seconds is None and swarm.bottleneck() >= 0.9 * best:
            seconds = now
    download = len(swarm.moved) * STATE / line
    return Settling(peers, began, swarm.bottleneck() / best, seconds, len(swarm.moved), download)


def balance(seed: int) -> Hour:
    moving, unmoved = _hour(seed, moves=True), _hour(seed, moves=False)
    spells = [len(list(spell)) for bare, spell in itertools.groupby(ratio == 0 for ratio in moving.ratios) if bare]
    return Hour(
        seed=seed,
        ratio=_mean(moving.ratios),
        unmoved=_mean(unmoved.ratios),
        best=statistics.fmean(moving.best),
        bare=sum(spells),
        unanswered=moving.unanswered,
        longest=max(spells, default=0),
        moves=len(moving.moved),
        too_soon=moving.too_soon,
    )


def _mean(ratios: Sequence[float | None]) -> float:
    """NaN if there was nothing to reach."""
    known = [ratio for ratio in ratios if ratio is not None]
    return statistics.fmean(known) if known else math.nan


@dataclass
class _Watched:
    """An hour of a swarm: the ratio of each second (None where even the best is 0), the best, who moved when."""

    ratios: list[float | None]
    best: list[float]
    moved: list[tuple[int, str, int]]
    unanswered: int = 0
    too_soon: int = 0


def _hour(seed: int, moves: bool) -> _Watched:
    chance = random.Random(seed)
    swarm = StageSwarm(STAGES, moves)
    lines = [chance.choice(LINES) for _ in SPEEDS]
    next_change = [HOUR / 4 + chance.expovariate(1 / HERE) for _ in SPEEDS]
    here = [f"{seed} {number}" for number in range(len(SPEEDS))]  # each time that it comes it is another peer
    for name, speed, line in zip(here, SPEEDS, lines, strict=True):
        swarm.join(name, speed, line)
    for _ in swarm.run(HOUR // 4):  # they join at once and settle before the hour
        pass
    swarm.moved.clear()
    watched = _Watched([], [], swarm.moved)
    could: dict[str, int] = {}
    for now in swarm.run(HOUR):
        for number, speed in enumerate(SPEEDS):
            if now < next_change[number]:
                continue
            if name := here[number]:
                swarm.leave(name)
                here[number] = ""
            else:
                here[number] = f"{seed} {number} {now}"
                swarm.join(here[number], speed, lines[number])
            next_change[number] = now + chance.expovariate(1 / (HERE if here[number] else AWAY))
        best = best_bottleneck(tuple(speed for speed, name in zip(SPEEDS, here, strict=True) if name), SHARES)
        watched.best.append(best)
        watched.ratios.append(swarm.bottleneck() / best if best else None)
        # For how long each of them could have moved while the same stages were bare.
        could = {name: could.get(name, 0) + 1 for name in swarm.could_move()} if swarm.bare() else {}
        watched.unanswered += max(could.values(), default=0) > REACTION
    watched.too_soon = swarm.too_soon
    return watched


@cache
def best_bottleneck(speeds: tuple[int, ...], shares: tuple[float, ...]) -> float:
    """Of all assignments of peers of these speeds, each with all stages, to stages with these shares."""
    if len(speeds) < len(shares):
        return 0.0
    peers, stages = len(speeds), len(shares)
    passed = np.zeros((stages, peers * stages + 1))
    chosen = np.zeros((peers, peers * stages + 1))
    for i, k in itertools.product(range(peers), range(stages)):
        passed[k, i * stages + k] = speeds[i] / shares[k]
        chosen[i, i * stages + k] = 1
    passed[:, -1] = -1  # the last variable is the bottleneck
    found = milp(
        c=[*[0.0] * (peers * stages), -1.0],
        constraints=[LinearConstraint(passed, lb=0), LinearConstraint(chosen, ub=1)],
        integrality=[*[1] * (peers * stages), 0],
        bounds=Bounds(0, [*[1.0] * (peers * stages), np.inf]),
    )
    assert found.success, found.message
    return float(-found.fun)
