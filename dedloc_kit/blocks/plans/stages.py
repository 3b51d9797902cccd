"""Who holds which stage of a pipeline, decided by each peer alone.

Nothing here reads a clock, a network or chance, so whoever sees the same peers decides the same. What a stage can pass
is the sum of the speeds of those who hold it, and what the pipeline can pass is that of its slowest stage: the
bottleneck.
"""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dedloc_kit.blocks.plans.plan import draw

MAX_SPEED = 1e6
"""Microbatches a second."""
GAIN, HORIZON = 1.1, 600.0
"""By which factor moves have to raise what the pipeline passes in so many seconds from now, the downloads included."""
REST = 600.0
"""Seconds between two moves of one peer, unless it moves to a bare stage."""
SECOND_LOOK = 15.0
"""Seconds from announcing a stage to beginning with it: others' records come late, and who seems gone may be there."""
BARE_LOOK = 5.0
"""The same for a stage that is bare: whoever was there is not reached any more, or was silent for very long."""
TURN, WINDOW = 10.0, 15.0
"""Of those who may move the best goes first, and each has its turn so many seconds after the one before, for so long.
Then the next ones wait as long once more: whoever began at the last moment is seen by then."""
CANDIDATES, MOVES = 8, 8
"""How many may move, and how many moves are looked ahead: one alone often gains nothing, as where two stages lack the
same."""
LOADING = 900.0
"""Seconds after which nobody counts on a peer any more that still loads its stage."""
LINE = 20e6 / 8
"""Bytes a second of a line of which nobody knows that it takes more: an estimate."""


@dataclass(frozen=True)
class Stage:
    """
    :ivar share: of the model's computation
    :ivar state: bytes that whoever takes it has to download
    """

    share: float
    state: float


@dataclass(frozen=True)
class Move:
    """A stage that a peer has announced to take; another peer's not before it was first seen here, or it could be
    dated back."""

    stage: int
    announced: float


@dataclass(frozen=True)
class StagePeer:
    """Raises ValueError for a speed that cannot be. Who leaves, or only drives, is none.

    :ivar stage: that it holds, or loads
    :ivar speed: microbatches a second through this stage, 0 if it has not been measured
    :ivar line: bytes a second that it downloads
    :ivar fits: stages that its memory holds, None for all
    :ivar loading: since when it loads its stage, or has announced it as a newcomer; None once it holds it
    :ivar moved: when it last began to move, None if it never has
    :ivar pinned: whether its owner chose the stage
    :ivar intends: what it has announced and not begun
    """

    name: str
    stage: int
    speed: float
    line: float = LINE
    fits: frozenset[int] | None = None
    loading: float | None = None
    moved: float | None = None
    pinned: bool = False
    intends: Move | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.speed <= MAX_SPEED or not self.line > 0:
            raise ValueError(f"no speed of a stage peer: {self.speed} over a line of {self.line}")

    def counts(self, now: float) -> bool:
        """Does it hold its stage, or may it be expected to?"""
        return self.loading is None or now < self.loading + LOADING

    def moving(self, now: float) -> bool:
        """Has it begun to move, and not ended?"""
        return self.loading is not None and self.moved is not None and self.counts(now)

    @property
    def may_help(self) -> bool:
        """May it move to a bare stage?"""
        return self.loading is None and not self.pinned

    def may_leave(self, now: float) -> bool:
        """May it move to any?"""
        return self.may_help and (self.moved is None or now >= self.moved + REST)


def rates(stages: Sequence[Stage], peers: Collection[StagePeer]) -> list[float]:
    """Microbatches a second that each stage can pass; who has not been measured counts like a middling peer."""
    found = [0.0] * len(stages)
    for peer, power in zip(peers, _powers(stages, peers), strict=True):
        found[peer.stage] += power / stages[peer.stage].share
    return found


def bottleneck(stages: Sequence[Stage], peers: Collection[StagePeer]) -> float:
    """Microbatches a second that the pipeline can pass."""
    return min(rates(stages, peers))


def place(
    stages: Sequence[Stage],
    peers: Collection[StagePeer],
    name: str,
    announced: float,
    now: float,
    fits: frozenset[int] | None = None,
) -> int:
    """Which stage a newcomer takes: of those that it can hold the slowest one.

    It announces that, and asks again SECOND_LOOK seconds later: of newcomers at the same time the earlier ones have the
    choice, and who has to choose anew is later than they.

    :param announced: when it has announced a stage; `now` if it has not
    :param fits: as of StagePeer, with at least one stage
    """
    there = [
        peer
        for peer in peers
        if peer.name != name
        and peer.counts(now)
        and (peer.loading is None or peer.moving(now) or (peer.loading, peer.name) < (announced, name))
    ]
    passed = rates(stages, there)
    holders = [sum(peer.stage == k for peer in there) for k in range(len(stages))]
    return min(
        range(len(stages)) if fits is None else sorted(fits),
        key=lambda k: (passed[k], holders[k], draw(name, str(k))),
    )


def intend(stages: Sequence[Stage], peers: Collection[StagePeer], name: str, now: float) -> Move | None:
    """What this peer ought to announce now: as before, anew, or nothing."""
    moves = useful_moves(stages, peers, now)
    if name not in moves:
        return None
    mine = next(peer for peer in peers if peer.name == name)
    turn = _turn(mine, moves, bare(stages, peers, now))
    if mine.intends is not None and turn is not None and now < turn + WINDOW:
        return mine.intends
    return Move(moves[name], now)


def may_begin(stages: Sequence[Stage], peers: Collection[StagePeer], name: str, now: float) -> bool:
    """May this peer begin the move that it has announced? One moves at a time, but for a bare stage nobody waits for
    who moves elsewhere."""
    moves = useful_moves(stages, peers, now)
    mine = next(peer for peer in peers if peer.name == name)
    nobody = bare(stages, peers, now)
    turn = _turn(mine, moves, nobody)
    if turn is None or not turn <= now < turn + WINDOW:
        return False
    in_need = moves[name] in nobody
    for other in peers:
        if other.name == name:
            continue
        theirs = _turn(other, moves, nobody)
        if other.moving(now) and not in_need:
            return False
        if theirs is not None and (theirs, other.name) < (turn, name) and now < theirs + 2 * WINDOW:
            return False
    return True


def bare(stages: Sequence[Stage], peers: Collection[StagePeer], now: float) -> frozenset[int]:
    """Stages that nobody holds or loads."""
    return frozenset(range(len(stages))) - {peer.stage for peer in peers if peer.counts(now)}


def useful_moves(stages: Sequence[Stage], peers: Collection[StagePeer], now: float) -> dict[str, int]:
    """Who may move to which stage, the best first: with whose move the bottleneck begins to gain enough.

    None of them leaves a stage without somebody who holds it. To a stage that is bare every move is useful.
    """
    counted = sorted((peer for peer in peers if peer.counts(now)), key=lambda peer: peer.name)
    trial = _Trial(stages, counted, now)
    if trial.most() < GAIN * min(trial.rates):
        return {}  # not even if all stages were served alike
    found: dict[str, int] = {}
    for index, stage in trial.moves():
        if counted[index].name in found:
            continue
        if trial.rates[stage] == 0 or _pays(_Trial(stages, counted, now), index, stage):
            found[counted[index].name] = stage
        if len(found) == CANDIDATES:
            break
    return found


def _pays(trial: "_Trial", index: int, stage: int) -> bool:
    """Does the pipeline pass enough more within HORIZON if this peer moves, and others after it?

    None of these moves takes from the slowest stages, so during a download the bottleneck is what it was before.
    """
    enough = GAIN * HORIZON * min(trial.rates)
    passed, left = 0.0, HORIZON
    for _ in range(MOVES):
        seconds = trial.seconds(index, stage)
        passed, left = passed + seconds * min(trial.rates), left - seconds
        trial.move(index, stage)
        if passed + left * min(trial.rates) >= enough:
            return True
        if not (further := trial.moves()):
            return False
        index, stage = further[0]
    return False


class _Trial:
    """An assignment in which moves are tried, one after the other."""

    def __init__(self, stages: Sequence[Stage], peers: Sequence[StagePeer], now: float) -> None:
        self._stages, self._peers = stages, peers
        self._powers = _powers(stages, peers)
        self._at = [peer.stage for peer in peers]
        self._helpers = {index for index, peer in enumerate(peers) if peer.may_help}
        self._free = {index for index, peer in enumerate(peers) if peer.may_leave(now)}
        self._holders = [0] * len(stages)
        for peer in peers:
            self._holders[peer.stage] += peer.loading is None
        self.rates = rates(stages, peers)

    def most(self) -> float:
        """What the bottleneck could be at best, if peers could be cut in pieces."""
        return sum(self._powers) / sum(stage.share for stage in self._stages)

    def seconds(self, index: int, stage: int) -> float:
        """Of the download."""
        return self._stages[stage].state / self._peers[index].line

    def moves(self) -> list[tuple[int, int]]:
        """Moves to the slowest stages after which the slow ones are served better, the best first."""
        slowest = min(self.rates)
        targets = [k for k, rate in enumerate(self.rates) if rate == slowest]
        now, found = sorted(self.rates), []
        for index in sorted(self._helpers if slowest == 0 else self._free):
            fits, at = self._peers[index].fits, self._at[index]
            if self._holders[at] < 2:
                continue
            for stage in targets:
                if stage != at and (fits is None or stage in fits):
                    after = sorted(self._after(index, stage))
                    if after > now:
                        found.append(([-rate for rate in after], self.seconds(index, stage), index, stage))
        return [(index, stage) for _, _, index, stage in sorted(found)]

    def move(self, index: int, stage: int) -> None:
        self.rates = self._after(index, stage)
        self._holders[self._at[index]] -= 1
        self._holders[stage] += 1
        self._at[index] = stage
        self._helpers.discard(index)
        self._free.discard(index)

    def _after(self, index: int, stage: int) -> list[float]:
        after = list(self.rates)
        after[self._at[index]] -= self._rate(index, self._at[index])
        after[stage] += self._rate(index, stage)
        return after

    def _rate(self, index: int, stage: int) -> float:
        return self._powers[index] / self._stages[stage].share


def _powers(stages: Sequence[Stage], peers: Collection[StagePeer]) -> list[float]:
    """Microbatches a second that each peer would pass if it held all stages."""
    known = [peer.speed * stages[peer.stage].share for peer in peers if peer.speed]
    middling = statistics.median(known) if known else 1.0
    return [peer.speed * stages[peer.stage].share if peer.speed else middling for peer in peers]


def _turn(peer: StagePeer, moves: dict[str, int], nobody: Collection[int]) -> float | None:
    """When it may begin the move that it has announced; None if that is none of these.

    :param nobody: stages that are bare
    """
    if peer.intends is None or moves.get(peer.name) != peer.intends.stage:
        return None
    look = BARE_LOOK if peer.intends.stage in nobody else SECOND_LOOK
    return peer.intends.announced + look + TURN * list(moves).index(peer.name)
