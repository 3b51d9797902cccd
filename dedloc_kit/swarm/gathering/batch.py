"""When the batch of the next step is full, and which of this peer's samples are in it. No I/O.

Nobody sees at once that the batch is full, and until a group stands some time passes. So each peer fixes its part when
the batch is full by what the others have told and surely computed since: what it computes from then on is for the step
after. A round begins when all of it is told. A part that was fixed too early is open again.
"""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from dedloc_kit.records.position import Position
from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.chain import Chain
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.gathering.peers import PeerTable

QUIET = 6.0
"""Seconds within which a peer that computes tells something; what seems computed and is not told then is not there."""
SHORTEST, LATE = 0.001, 0.2
"""Seconds that a microbatch takes at least, and by which part of its usual time it may be late."""
HELD = 10.0
"""Seconds after which a part that no round has taken also holds what was computed meanwhile: a peer that is counted and
does not come would else keep the others from filling the batch without it."""
DISTRUSTED_STEPS = 8
"""Steps for which only what is told counts, after that."""
MIN_PERIOD, USUAL_PERIOD, MAX_PERIOD = 0.3, 1.0, 4.0
"""Seconds between two looks into the directory."""
LOOKS_LEFT, LOOKS_PER_BATCH = 3, 20
"""Looks in the time until the batch is full, and at most in the whole time: often near its end, seldom before, for each
is work for all that are asked."""
POLL, MAX_POLL = 0.1, 1.0


@dataclass(frozen=True)
class Fix:
    """This peer's part is what it has now. Tell it at once."""


@dataclass(frozen=True)
class Open:
    """What this peer computes is in the batch."""


Count = Callable[[Mapping[PeerId, Position]], int]


def claimed(told: Mapping[PeerId, Position]) -> int:
    """All that these say."""
    return sum(position.samples for position in told.values())


class BatchFilling:
    """Watches the batch that fills up.

    :ivar mine: where this peer is and what it has
    :ivar fixed: this peer's part is fixed
    """

    def __init__(
        self, me: PeerId, mine: Position, chain: Chain, table: PeerTable, wanted: int, count: Count = claimed
    ) -> None:
        """:param wanted: samples of a batch; :param count: how many samples count of what peers claim"""
        self._me, self.mine, self._chain, self._table = me, mine, chain, table
        self._wanted, self._count = wanted, count
        self.fixed = False
        self._head = self._before = ""
        self._counting = frozenset[PeerId]()
        self._fixed_at = 0.0
        self._distrusted_until = 0

    def peers(self, now: float) -> tuple[dict[PeerId, Position], dict[PeerId, Position]]:
        """Those at this head, and those that count in the last commit and have not told yet that they have taken it."""
        counting, head = self.counting, self._head
        in_sync, late = {}, {}
        for peer, at in self._table.counted(now).items():
            if at.head == head:
                in_sync[peer] = at
            elif at.head == self._before and peer in counting:
                late[peer] = at
        return in_sync, late

    @property
    def counting(self) -> frozenset[PeerId]:
        """Peers that count in the last commit; none after a reset."""
        if self._head != self._chain.head.previous:
            last = self._chain.records[-1:]
            commit = last[0] if last and isinstance(last[0], Commit) else None
            self._head, self._before = self._chain.head.previous, "" if commit is None else commit.previous
            self._counting = frozenset(() if commit is None else (entry.peer for entry in commit.value.counted))
        return self._counting

    def _told(self, others: Mapping[PeerId, Position]) -> int:
        return self._count({**others, self._me: self.mine})

    def full(self, members: Set[PeerId], now: float) -> bool:
        """Whether these and this peer have told a full batch."""
        return self._told(_among(self.peers(now)[0], members)) >= self._wanted

    # This peer's part

    def update(self, mine: Position, now: float, members: Set[PeerId] | None = None) -> list[Fix | Open]:
        """See whether the batch is full; not while a round is under way.

        :param members: of the group that stands, if one does: the others bring nothing
        """
        self.mine = mine
        in_sync, late = (_among(each, members) for each in self.peers(now))
        told, step = self._told(in_sync), self._chain.head.step
        untold = self._untold(in_sync, late, now) if step >= self._distrusted_until else 0.0
        if told + untold < self._wanted:
            return self.open(mine)
        if not self.fixed:
            self.fixed, self._fixed_at = True, now
            return [Fix()]
        if told < self._wanted and now > self._fixed_at + QUIET:
            self._distrusted_until = step + DISTRUSTED_STEPS
        if now <= self._fixed_at + HELD:
            return []
        self._fixed_at = now
        return [Open(), Fix()]

    def open(self, mine: Position) -> list[Fix | Open]:
        """A round has ended, or the chain has moved."""
        self.mine = mine
        was, self.fixed = self.fixed, False
        return [Open()] if was else []

    def _untold(self, in_sync: Mapping[PeerId, Position], late: Mapping[PeerId, Position], now: float) -> float:
        """What the others have surely computed and not told yet; the late ones have computed as long as this peer."""
        mine = self.mine.samples_per_second
        seconds = self.mine.samples / mine if mine else 0.0
        since = sum(self._since(peer, at, now) for peer, at in in_sync.items())
        return since + sum(at.samples_per_second * seconds for at in late.values())

    def _since(self, peer: PeerId, at: Position, now: float) -> float:
        """Samples of the microbatches that a peer has finished since it told this, if it is as fast as before."""
        told, each = self._table.told_at(peer), max(SHORTEST, at.boundary_seconds)
        if at.fixed or self._table.looked - told > QUIET:
            return 0.0
        before = min(each, max(0.0, at.time - at.computed)) if at.computed else 0.0
        then, by_now = (max(0, math.floor(t / each - LATE)) for t in (before, before + max(0.0, now - told)))
        return at.samples_per_second * each * (by_now - then)

    # When

    def seconds_left(self, now: float) -> float:
        """Until the batch is full, if all go on as they did. A guess: a round begins with what was told."""
        in_sync, late = self.peers(now)
        told = {**late, **in_sync}
        lacking = float(self._wanted - self._told(in_sync))
        for peer, at in told.items():
            lacking -= at.samples_per_second * min(MAX_PERIOD, max(0.0, now - self._table.told_at(peer)))
        return self._seconds_for(lacking, told)

    def _seconds_for(self, samples: float, told: Mapping[PeerId, Position]) -> float:
        rate = self.mine.samples_per_second + sum(at.samples_per_second for at in told.values())
        return 0.0 if samples <= 0 else samples / rate if rate else math.inf

    def may_begin(self, members: Set[PeerId], called: bool, now: float) -> bool:
        """Whether the round of a group that stands begins.

        :param called: another member has begun
        """
        return called or self.full(members, now)

    def look_period(self, now: float) -> float:
        """Seconds until the next look into the directory is of use."""
        left = self.seconds_left(now)
        if math.isinf(left):
            return USUAL_PERIOD
        in_sync, late = self.peers(now)
        whole = self._seconds_for(self._wanted, {**late, **in_sync})
        shortest = min(USUAL_PERIOD, max(MIN_PERIOD, whole / LOOKS_PER_BATCH))
        return min(MAX_PERIOD, max(shortest, left / LOOKS_LEFT))

    def deadline(self, now: float) -> float:
        """When to update it again."""
        return now + min(MAX_POLL, max(POLL, self.seconds_left(now)))


def _among(told: dict[PeerId, Position], members: Set[PeerId] | None) -> dict[PeerId, Position]:
    return told if members is None else {peer: at for peer, at in told.items() if peer in members}
