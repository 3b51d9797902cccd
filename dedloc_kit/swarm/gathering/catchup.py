"""How a peer that is behind, or on a branch that was left, gets to the others' head. No I/O.

What others say of their head is a claim. A peer that claims a better branch is asked for its records; only what the
chain proves is followed. A peer that missed a few steps takes their averages, one that is further behind, or has to go
back, takes the whole state.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from dedloc_kit.records.position import Position
from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.chain import KEPT, Chain, ChainRecord, Rank
from dedloc_kit.swarm.consensus.records import Commit, Reset
from dedloc_kit.swarm.gathering.peers import PeerTable

MAX_PAUSE = 600.0
"""Seconds in which a peer that has often claimed what it could not prove is not asked."""


@dataclass(frozen=True)
class CatchUpOptions:
    """Seconds, but for the first.

    :ivar averages: so many steps at most are taken from their averages
    :ivar grace: a peer one step ahead is no news so long: the own round is about to tell the same commit
    :ivar answer: for records
    :ivar average, state: for what is fetched; the caller tells earlier if it fails
    :ivar pause: until a peer is asked again that has not answered or proven its claim; longer each time
    """

    averages: int
    grace: float = 3.0
    answer: float = 10.0
    average: float = 120.0
    state: float = 1800.0
    pause: float = 2.0


# Events


@dataclass(frozen=True)
class Records:
    """A peer's answer. Hostile: at most `KEPT` records of at most `MAX_BYTES` in all."""

    peer: PeerId
    records: tuple[ChainRecord, ...]


@dataclass(frozen=True)
class NoAnswer:
    peer: PeerId


@dataclass(frozen=True)
class NothingKept:
    """A peer is ahead, as it says, and keeps no record that follows on this branch."""

    peer: PeerId


@dataclass(frozen=True)
class Failed:
    """What was to be taken could not be had."""


@dataclass(frozen=True)
class Look:
    """The table or the chain has changed, or the deadline has passed. :ivar in_round: a round is under way"""

    in_round: bool = False


Event = Records | NoAnswer | NothingKept | Failed | Look

# Effects


@dataclass(frozen=True)
class AskRecords:
    """Ask a peer for what follows this link on its branch."""

    peer: PeerId
    since: str


@dataclass(frozen=True)
class TakeRecord:
    """Adopt the next record; before a commit, fetch its average from one of these and apply it."""

    record: ChainRecord
    holders: tuple[PeerId, ...]


@dataclass(frozen=True)
class TakeState:
    """Fetch the state after the last of these records, and adopt them; the chain has proven them.

    :ivar donors: peers that tell that they are there; perhaps none yet
    """

    records: tuple[ChainRecord, ...]
    donors: tuple[PeerId, ...]


@dataclass(frozen=True)
class TooFarBehind:
    """A peer keeps nothing of what lies between this branch and its own, as it says: if that is so, take the state with
    its chain, as a newcomer does. The chain proves nothing here: whose word counts is the caller's to know.
    """

    peer: PeerId


Effect = AskRecords | TakeRecord | TakeState | TooFarBehind


class CatchUp:
    """The state machine of one peer.

    :ivar deadline: when it needs a Look
    """

    def __init__(self, me: PeerId, client: bool, chain: Chain, table: PeerTable, options: CatchUpOptions) -> None:
        """:param client: this peer reaches no other client"""
        self._me, self._client, self._chain, self._table, self._options = me, client, chain, table, options
        self.deadline = -inf
        self._asked: PeerId = ""
        self._proven: tuple[ChainRecord, ...] = ()
        self._taking = self._whole = False
        self._ahead_since: dict[Rank, float] = {}
        self._offences = Counter[PeerId]()
        self._not_before: dict[PeerId, float] = {}

    @property
    def behind(self) -> bool:
        """A better branch is proven, so gathering at this head is of no use."""
        return bool(self._proven)

    def handle(self, event: Event, now: float) -> list[Effect]:
        in_round = False
        match event:
            case Records(peer, records):
                if peer != self._asked:
                    return []
                self._asked = ""
                if (effects := self._examine(peer, records, now)) is not None:
                    return effects
            case NoAnswer(peer):
                if peer != self._asked:
                    return []
                self._put_off(peer, now)
            case NothingKept(peer):
                if peer != self._asked:
                    return []
                self._put_off(peer, now)
                return [TooFarBehind(peer)]
            case Failed():
                if self._taking:
                    return self._take_state_or_give_up(now)
            case Look(in_round):
                pass
        return self._go_on(in_round, now)

    def _go_on(self, in_round: bool, now: float) -> list[Effect]:
        if self._proven:
            rest = self._rest()
            if len(rest) < len(self._proven) or not rest:
                self._proven, self._taking = rest, False
            if rest and not self._taking:
                return self._take(now)
            if rest:
                return self._take_state_or_give_up(now) if now >= self.deadline else []
        if self._asked:
            if now < self.deadline:
                return []
            self._put_off(self._asked, now)
        return self._ask(in_round, now)

    # Asking

    def _ask(self, in_round: bool, now: float) -> list[Effect]:
        able = self._claims()
        for peer in [peer for peer, until in self._not_before.items() if until <= now and peer not in able]:
            del self._not_before[peer], self._offences[peer]
        self._ahead_since = {at.rank: self._ahead_since.get(at.rank, now) for at in able.values()}
        due = {peer: self._due(peer, at, in_round) for peer, at in able.items()}
        ready = [peer for peer, when in due.items() if when <= now]
        if not ready:
            self.deadline = min((*due.values(), now + self._options.answer))
            return []
        self._asked = min(ready, key=lambda peer: (self._offences[peer], self._turn(peer)))
        self.deadline = now + self._options.answer
        return [AskRecords(self._asked, self._chain.head.previous)]

    def _claims(self) -> dict[PeerId, Position]:
        """Peers that claim to be on a better branch than this one, and can be reached."""
        ahead = {peer: at for peer, at in self._table.alive().items() if at.rank > self._chain.rank}
        return {peer: at for peer, at in ahead.items() if not (self._client and at.client)}

    def _due(self, peer: PeerId, at: Position, in_round: bool) -> float:
        own_step = in_round and at.rank == (self._chain.head.term, self._chain.head.step + 1)
        since = self._ahead_since[at.rank] + (self._options.grace if own_step else 0.0)
        return max(since, self._not_before.get(peer, -inf))

    def _turn(self, peer: PeerId) -> bytes:
        return hashlib.sha256(f"{self._me} {self._chain.head.previous} {peer}".encode()).digest()

    def _put_off(self, peer: PeerId, now: float) -> None:
        self._asked = ""
        self._offences[peer] += 1
        pause = min(MAX_PAUSE, self._options.pause * 2.0 ** min(self._offences[peer] - 1, 10))
        self._not_before[peer] = now + pause

    # What was proven

    def _examine(self, peer: PeerId, records: Sequence[ChainRecord], now: float) -> list[Effect] | None:
        """None if they prove nothing better."""
        found = self._chain.parting(records[:KEPT])
        if found is None:
            connects = (
                not records or self._chain.previous_of(records[0]) in self._chain or records[0].link in self._chain
            )
            self._put_off(peer, now)
            return None if connects else [TooFarBehind(peer)]
        base, rest = found
        if self._rank_after(base, rest) <= self._chain.rank or not self._chain.is_valid_after(base, rest):
            self._put_off(peer, now)
            return None
        self._offences.pop(peer, None)
        self._proven, self._taking = rest, False
        return self._take(now)

    def _rest(self) -> tuple[ChainRecord, ...]:
        """What is left to take of what was proven; nothing if the chain has gone a better way meanwhile."""
        found = self._chain.parting(self._proven)
        return found[1] if found is not None and self._rank_after(*found) > self._chain.rank else ()

    def _rank_after(self, base: str, records: Sequence[ChainRecord]) -> Rank:
        term = self._chain.at(base).term
        for record in records:
            if isinstance(record, Reset):
                term = (record.term, record.link)
        return term, records[-1].after

    def _take(self, now: float) -> list[Effect]:
        """The next record of what was proven, or the state after all of it."""
        commits = sum(isinstance(record, Commit) for record in self._proven)
        first = self._proven[0]
        elsewhere = self._chain.previous_of(first) != self._chain.head.previous
        if elsewhere or commits > self._options.averages or any(map(_takes_over, self._proven)):
            return self._take_state(now)
        holders = first.holders if isinstance(first, Commit) else ()
        others = [peer for peer, at in self._reachable().items() if at.rank > self._chain.rank and peer not in holders]
        self._taking, self._whole, self.deadline = True, False, now + self._options.average
        return [TakeRecord(first, (*(peer for peer in holders if peer != self._me), *others))]

    def _take_state(self, now: float) -> list[Effect]:
        self._taking, self._whole, self.deadline = True, True, now + self._options.state
        target = self._proven[-1].link
        donors = tuple(peer for peer, at in self._reachable().items() if at.head == target)
        return [TakeState(self._proven, donors)]

    def _take_state_or_give_up(self, now: float) -> list[Effect]:
        """After a failure: the state in place of an average; then what others say by now, for they have gone on."""
        if not self._whole and self._proven:
            return self._take_state(now)
        self._proven, self._taking = (), False
        self.deadline = now + self._options.pause
        return []

    def _reachable(self) -> Mapping[PeerId, Position]:
        return {peer: at for peer, at in self._table.alive().items() if not (self._client and at.client)}


def _takes_over(record: ChainRecord) -> bool:
    """Whether a person has chosen another state for this step."""
    return isinstance(record, Reset) and record.chosen
