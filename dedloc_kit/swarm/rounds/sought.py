"""Whom a peer takes its next step with: who is told to be there, who is waited for, for whom it looks."""

import time
from collections.abc import Collection, Set

from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.averaging.matchmaking.grouping import Grouping
from dedloc_kit.swarm.directory.tracker import Tracker

OPEN_SHARE = 0.5
"""Of the time that is left until the batch is full a group takes in whoever comes; the rest is for it to stand in."""


class Sought:
    """By one peer."""

    def __init__(self, state: TrainingState, tracker: Tracker, grouping: Grouping) -> None:
        self._state, self._tracker, self._grouping = state, tracker, grouping
        self._peers = tracker.peers
        self._last_members: frozenset[str] = frozenset()  # of the global step whose parameters this peer holds
        self.awaited: frozenset[str] = frozenset()
        """Who was expected when this peer began to look for its group."""
        self.peers: frozenset[str] = frozenset()
        """These, and who has come since."""
        self._open_until = 0.0  # the batch is not full before: the group need not stand
        self.speed = 0.0
        """Samples per second of this peer when it began to look."""

    def stepped(self, members: Collection[str]) -> None:
        """This peer holds the parameters that these members' round led to."""
        self._last_members = frozenset(members)

    def in_sync(self) -> dict[str, Progress]:
        """The others who hold the same state: their samples fill the same batch."""
        in_sync, backed_off = self._tracker.at(*self._state.position), self._peers.backed_off()
        return {peer: progress for peer, progress in in_sync.items() if peer not in backed_off}

    def late(self) -> dict[str, Progress]:
        """Who contributed to the step that led to this peer's state, and has not told that it has finished it."""
        others, before = self._tracker.others(), self._state.step - 1
        able = self._last_members & others.keys() - self._peers.backed_off()
        return {p: others[p] for p in able if others[p].step == before}

    def expected(self) -> dict[str, Progress]:
        """Who has to come to the next round.

        Whoever missed the last one first has to fetch what it missed, perhaps over a line that was just down: nobody
        waits.
        """
        return self._grouping.expected(self.in_sync(), self.late())

    def begin(self, peers: Collection[str], left: float, speed: float) -> None:
        """Look for these from now on.

        :param left: seconds until the batch is probably full, if this peer computes so fast (`speed`)
        """
        self.awaited = self.peers = frozenset(peers)
        self._open_until, self.speed = time.monotonic() + OPEN_SHARE * left, speed

    def widen(self, peers: Set[str], left: float) -> bool:
        """Who gets to this state while the group is being found belongs to it, and may be the one to lead it. Once the
        batch is full the group waits for nobody of whom this peer does not know. Is there something new?"""
        full = left == 0.0 and self._open_until > time.monotonic()
        if not peers or not (full or not peers <= self.peers):
            return False
        self.peers |= peers
        self._open_until = min(self._open_until, time.monotonic() + OPEN_SHARE * left)
        return True

    @property
    def open_for(self) -> float:
        """Seconds in which the group takes in whoever comes."""
        return max(0.0, self._open_until - time.monotonic())

    def vanished(self) -> bool:
        """Is somebody gone for whom this peer looks?"""
        return not self.peers <= self._tracker.others().keys()

    def stood(self, members: Collection[str]) -> None:
        """The group stood with these members: who was awaited and is not there does not count until it speaks again."""
        self._peers.suspect(self.awaited.difference(members))
