"""Who is there, as looks into the directory have found; and who is not counted, for how long.

All times are of this peer's steady clock. Clocks of others may be wrong and may jump, so nothing compares them with
this one: how old a record is follows from the least delay that was seen between its author's clock and this one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Set
from math import inf

from dedloc_kit.records.position import Position
from dedloc_kit.records.record import PeerId

SILENT, MISSED = 15.0, 10.0
"""Seconds: a peer that has told nothing new for so long is gone; or has missed a report. Time in which no look
succeeded does not count."""
REMEMBERED = 60.0
"""Seconds after which an old record of a peer that is gone is forgotten, so that its clock may have been set back."""
MAX_GAP = 5.0
"""Seconds: a longer time between two looks counts as this, for nobody was watching."""
MAX_PEERS = 4096
DELAYS, MAX_DELAY = 8, 10.0
"""Records that a peer's delay is judged by; no record is believed to be older when it comes (seconds)."""
FORGIVEN, MAX_BACK_OFF = 2, 600.0
"""A peer may fail so often in a row before it is backed off; seconds."""


class _Peer:
    def __init__(self) -> None:
        self.position: Position | None = None
        self.heard = -inf
        """In watched time."""
        self.told_at = -inf
        self.delays = deque[float](maxlen=DELAYS)
        self.left = False


class PeerTable:
    """What this peer knows of the others.

    :ivar looks: how many looks into the directory have succeeded
    :ivar looked: when the last one did
    """

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._peers: dict[PeerId, _Peer] = {}
        self.looks = 0
        self.looked, self._watched = inf, 0.0
        self._anybody = -inf
        self._suspects: dict[PeerId, float] = {}
        self._offences = Counter[PeerId]()
        self._backed_off: dict[PeerId, float] = {}

    # What was told

    def look(self, found: Mapping[PeerId, Position | None], now: float) -> None:
        """A look has succeeded. It may have found old records, and missed new ones.

        :param found: None for a peer that says that it has left
        """
        self._watched += min(MAX_GAP, max(0.0, now - self.looked))
        self.looked = now
        self.looks += 1
        for peer, position in found.items():
            self.tell(peer, position, now)
        since = self._watched - REMEMBERED
        for name in [name for name, peer in self._peers.items() if peer.heard <= since]:
            del self._peers[name]
            for known in (self._suspects, self._offences, self._backed_off):
                known.pop(name, None)
        if self.alive():
            self._anybody = self._watched

    def tell(self, peer: PeerId, position: Position | None, now: float) -> None:
        """A peer has told this, in the directory or directly."""
        if peer == self._me or (peer not in self._peers and len(self._peers) >= MAX_PEERS):
            return
        known = self._peers.setdefault(peer, _Peer())
        if position is None:
            known.left = True
            known.heard = self._watched
        elif known.position is None or position.time > known.position.time:
            known.position, known.left, known.heard = position, False, self._watched
            known.delays.append(now - position.time)
            known.told_at = max(now - MAX_DELAY, position.time + min(known.delays))

    def may_have_missed(self, found: Mapping[PeerId, Position | None]) -> bool:
        """Whether a look that found this, and asked one node, may have missed news: others may know more."""
        since = self._watched - MISSED

        def is_old(peer: PeerId, known: Position, position: Position | None) -> bool:
            silent = self._peers[peer].heard <= since
            return position is not None and (position.time <= known.time if silent else position.time < known.time)

        alive = self.alive().items()
        return not found or any(peer not in found or is_old(peer, known, found[peer]) for peer, known in alive)

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._peers

    def told_at(self, peer: PeerId) -> float:
        """When a peer told what it told last; rather too late than too early."""
        return self._peers[peer].told_at

    # Who is there

    def alive(self) -> dict[PeerId, Position]:
        since = self._watched - SILENT
        return {
            name: peer.position
            for name, peer in self._peers.items()
            if peer.position is not None and peer.heard > since and not peer.left
        }

    def believed(self) -> dict[PeerId, Position]:
        """Those who are there, but for suspects."""
        suspects = self._suspects
        return {p: at for p, at in self.alive().items() if p not in suspects or suspects[p] < self.told_at(p)}

    def counted(self, now: float) -> dict[PeerId, Position]:
        """Those who are there, but for suspects and those who are backed off."""
        return {peer: at for peer, at in self.believed().items() if not self.backed_off(peer, now)}

    def backed_off(self, peer: PeerId, now: float) -> bool:
        """Whether its rounds have failed again and again."""
        return self._backed_off.get(peer, -inf) > now

    def left(self, peers: Iterable[PeerId]) -> frozenset[PeerId]:
        """Those of these peers that said that they leave."""
        return frozenset(peer for peer in peers if peer in self._peers and self._peers[peer].left)

    def lonely(self, now: float) -> bool:
        """Whether looks, the last one just now, have found nobody for as long as a record lives, or ever."""
        return self.looks > 0 and now - self.looked <= SILENT <= self._watched - self._anybody

    def line_was_down(self) -> None:
        """That looks have found nobody says nothing."""
        self._anybody = self._watched

    # Who is not counted

    def doubt(self, peers: Set[PeerId], now: float) -> None:
        """Do not count these until they tell something that they have not told yet."""
        self._suspects |= dict.fromkeys(self._peers.keys() & peers, now)

    def suspect(self, peers: Set[PeerId], now: float) -> None:
        """This peer has seen them fail: doubt them, and back them off if they do so again and again."""
        self.doubt(peers, now)
        for peer in self._peers.keys() & peers:
            self._offences[peer] += 1
            if self._offences[peer] > FORGIVEN:
                self._backed_off[peer] = now + min(MAX_BACK_OFF, 2.0 ** self._offences[peer])

    def trust(self, peers: Iterable[PeerId]) -> None:
        """A round with these has led to a commit."""
        for peer in peers:
            self._offences.pop(peer, None)
            self._backed_off.pop(peer, None)

    def need(self, peers: Iterable[PeerId]) -> None:
        """Nothing goes on without these: they are not backed off any more."""
        for peer in peers:
            self._backed_off.pop(peer, None)
