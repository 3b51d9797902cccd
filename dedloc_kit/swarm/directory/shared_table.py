"""The other peers as looks into the directory find them, for several threads."""

import threading
from collections.abc import Callable, Collection

from dedloc_kit.records.orders import Notice
from dedloc_kit.records.position import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.directory.twin import Twin
from dedloc_kit.swarm.gathering.peers import PeerTable

FRESH_SECONDS = 2.0
"""A node that holds a record of the last so many seconds probably holds those of all peers."""
WIDE_LOOK = 10
"""Every so many looks several nodes are asked, whatever one of them says."""
DHT_TIMEOUT = 10.0


class SharedTable:
    """A `PeerTable` with what peers tell beside their positions, but for those that the organizer has banned.

    :ivar me: this peer; :ivar now: its steady clock
    :ivar table: to be used with the lock
    """

    def __init__(
        self,
        me: str,
        organizer: str,
        directory: Directory[Progress],
        twin: Twin[Progress],
        now: Callable[[], float],
    ) -> None:
        """
        :param twin: is shown what stands in the directory under this peer's own key
        :param now: a steady clock
        """
        self.me, self._organizer, self._directory, self._twin, self.now = me, organizer, directory, twin, now
        self.table, self.lock = PeerTable(me), threading.RLock()
        self._looking = threading.Lock()
        self._told: dict[str, Progress] = {}
        self._bans: Callable[[str], bool] = lambda _: False

    # Looking

    def look(self, cut_off: Callable[[], bool] = lambda: False) -> bool:
        """Fetch what everybody tells now.

        That all records have lapsed does not make this peer lonely: on a machine that slept they have, and a look right
        after it may find its connections dead. Nor does a look that was made while the line was down.

        :param cut_off: whether it is down; asked after a look that has found nobody; may take some seconds

        Returns whether several nodes were asked from the beginning, as is done now and then, and while nobody is known:
        one alone would not be believed that nobody is there.
        """
        with self._looking:
            known = len(self.alive())
            wide = not known or self.table.looks % WIDE_LOOK == 0
            found = self._find(known, None if wide else FRESH_SECONDS)
            if not wide and self._may_have_missed(found):
                found = self._find(known, None)
            self._learn(found, blind=not found and cut_off())
        return wide

    def _find(self, known: int, age: float | None) -> dict[str, Progress | None]:
        found = self._directory.look(peers=known, timeout=DHT_TIMEOUT, age=age)
        self._twin.see(found.pop(self.me, None))
        return found

    def _may_have_missed(self, found: dict[str, Progress | None]) -> bool:
        with self.lock:
            return self.table.may_have_missed(_positions(found))

    def _learn(self, found: dict[str, Progress | None], *, blind: bool) -> None:
        with self.lock:
            found = {peer: None if self._bans(peer) else told for peer, told in found.items()}
            self.table.look(_positions(found), self.now())
            if blind:
                self.table.line_was_down()
            for peer, told in found.items():
                if told is not None and (peer not in self._told or told.time > self._told[peer].time):
                    self._told[peer] = told
            self._told = {peer: told for peer, told in self._told.items() if peer in self.table}

    # Who is there

    def alive(self) -> dict[str, Progress]:
        """Everybody else that is there."""
        with self.lock:
            alive = self.table.alive()
            return {peer: told for peer, told in self._told.items() if peer in alive}

    def others(self) -> dict[str, Progress]:
        """Those of them that are neither suspected nor backed off.

        The organizer counts whenever it speaks, also while rounds with it fail again and again: what it says is how
        this peer knows how far the swarm is.
        """
        with self.lock:
            believed = self.table.believed().keys() - (self.backed_off() - {self._organizer})
            return {peer: told for peer, told in self._told.items() if peer in believed}

    # Who is not counted

    def ban(self, notice: Notice) -> None:
        """Leave out those that the organizer has banned. Who was banned before and is not now comes back when it speaks
        again."""
        with self.lock:
            self._bans = notice.refuses
            for peer in filter(notice.refuses, self._told):
                self.table.tell(peer, None, self.now())

    def doubt(self, peers: Collection[str], since: float | None = None) -> None:
        """As `PeerTable.doubt`. :param since: when they failed, by the steady clock; now"""
        with self.lock:
            self.table.doubt(set(peers), self.now() if since is None else since)

    def suspect(self, peers: Collection[str], since: float | None = None) -> None:
        """As `PeerTable.suspect`. :param since: when they failed, by the steady clock; now"""
        with self.lock:
            self.table.suspect(set(peers), self.now() if since is None else since)

    def backed_off(self) -> frozenset[str]:
        """Peers whose rounds have failed again and again."""
        with self.lock:
            now = self.now()
            return frozenset(peer for peer in self._told if self.table.backed_off(peer, now))


def _positions(found: dict[str, Progress | None]) -> dict[str, Position | None]:
    return {peer: None if told is None else told.position for peer, told in found.items()}
