"""When the batch of the next step is full, and which of this peer's samples are in it. No I/O.

Nobody sees at once that the batch is full, and until a group stands some time passes. So each peer fixes its part when
the batch is full by what the others have told and surely computed since: what it computes from then on is for the step
after. A round begins when all of it is told. A part that was fixed too early is open again.
"""

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from dedloc_kit.records.position import Position
from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.instance import Instance
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


class ChainEnd(Protocol):
    """Where this peer is on the chain: a `Chain`, or what is known of it elsewhere."""

    @property
    def head(self) -> Instance:
        """The instance that is to be decided next."""

    @property
    def last(self) -> Commit | None:
        """The commit that led to it; None after a reset, and where the chain begins."""


Count = Callable[[Mapping[PeerId, Position]], int]


def claimed(told: Mapping[PeerId, Position]) -> int:
    """All that these say."""
    return sum(position.samples for position in told.values())


class BatchFilling:
    """Watches the batch that fills up.

    :ivar mine: where this peer is and what it has
    :ivar fixed: this peer's part is fixed
    :ivar said: how many samples the batch has where others decide that, as the drivers of a pipeline do; infinity while
        it is not known; None: a global batch
    """

    def __init__(
        self,
        me: PeerId,
        mine: Position,
        chain: ChainEnd,
        table: PeerTable,
        global_batch: int,
        count: Count = claimed,
        overflow: bool = False,
    ) -> None:
        """
        :param count: how many samples count of what peers claim
        :param overflow: a part is fixed only when its round begins, so that it holds all that was computed
        """
        self._me, self.mine, self._chain, self._table = me, mine, chain, table
        self._global_batch, self._count, self._overflow = global_batch, count, overflow
        self.fixed = False
        self.said: float | None = None
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
    def size(self) -> float:
        """Samples of the batch."""
        return self._global_batch if self.said is None else self.said

    @property
    def counting(self) -> frozenset[PeerId]:
        """Peers that count in the last commit; none after a reset."""
        if self._head != self._chain.head.previous:
            commit = self._chain.last
            self._head, self._before = self._chain.head.previous, "" if commit is None else commit.previous
            self._counting = frozenset(() if commit is None else (entry.peer for entry in commit.value.counted))
        return self._counting

    def _told(self, others: Mapping[PeerId, Position]) -> int:
        return self._count({**others, self._me: self.mine})

    def samples(self, now: float) -> int:
        """What counts of what all have told toward the next step."""
        return self._told(self.peers(now)[0])

    def full(self, members: Set[PeerId], now: float) -> bool:
        """Whether these and this peer have told a full batch."""
        return self._told(_among(self.peers(now)[0], members)) >= self.size

    # This peer's part

    def see(self, mine: Position, said: float | None) -> None:
        """This peer is here now, and this is said of the batch."""
        self.mine, self.said = mine, said

    def fix(self) -> None:
        """A round has begun: this peer's part is what it has."""
        self.fixed = True

    def update(self, mine: Position, now: float, members: Set[PeerId] | None = None) -> list[Fix | Open]:
        """See whether the batch is full; not while a round is under way.

        :param members: of the group that stands, if one does: the others bring nothing
        """
        self.mine = mine
        if self._overflow:
            return []
        in_sync, late = (_among(each, members) for each in self.peers(now))
        told, step = self._told(in_sync), self._chain.head.step
        # Nobody has to guess where it is said what the batch holds: no more than that is computed.
        guesses = step >= self._distrusted_until and self.said is None
        untold = self._untold(in_sync, late, now) if guesses else 0.0
        if told + untold < self.size:
            return self.open(mine)
        if not self.fixed:
            self.fixed, self._fixed_at = True, now
            return [Fix()]
        if told < self.size and now > self._fixed_at + QUIET:
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

    def is_ahead(self, later: int, now: float) -> bool:
        """Whether this peer has computed its share of the batch after this one as well.

        :param later: samples that it has computed for that one
        """
        mine, others = self.mine.samples_per_second, self._table.counted(now).values()
        rate = mine + sum(at.samples_per_second for at in others)
        return self.fixed and not self._overflow and mine > 0 and later * rate >= self._global_batch * mine

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
        lacking = float(min(self.size, self._global_batch) - self._told(in_sync))
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
        in_sync = _among(self.peers(now)[0], members)
        samples, said = self._told(in_sync), self.said
        if samples >= self.size or (called and said is None):
            return True
        # A peer that only follows is not told what the batch holds. It begins with those that know it, and if nobody
        # calls it, once all that compute say that they have all of it.
        ignorant = self.mine.follower and (said is None or math.isinf(said))
        whole = samples >= self._global_batch and all(at.fixed or at.follower for at in in_sync.values())
        return ignorant and (called or whole)

    def lacks(self, members: Set[PeerId], now: float) -> bool:
        """Whether this group has less than there is, of a batch that is said to be a short one.

        It is short since a driver has died, or seems to have: it is taken with all samples that others of the swarm
        have, or not yet.
        """
        brought, there = self._told(_among(self.peers(now)[0], members)), self.samples(now)
        whole = brought >= max(self.size, self._global_batch)
        return self.said is not None and not whole and brought < there and there >= self.size

    def look_period(self, now: float) -> float:
        """Seconds until the next look into the directory is of use."""
        left = self.seconds_left(now)
        if math.isinf(left):
            return USUAL_PERIOD
        in_sync, late = self.peers(now)
        whole = self._seconds_for(self._global_batch, {**late, **in_sync})
        shortest = min(USUAL_PERIOD, max(MIN_PERIOD, whole / LOOKS_PER_BATCH))
        return min(MAX_PERIOD, max(shortest, left / LOOKS_LEFT))

    def deadline(self, now: float) -> float:
        """When to update it again."""
        return now + min(MAX_POLL, max(POLL, self.seconds_left(now)))


def _among(told: dict[PeerId, Position], members: Set[PeerId] | None) -> dict[PeerId, Position]:
    return told if members is None else {peer: at for peer, at in told.items() if peer in members}
