"""For whom a peer looks, to take its next step with them."""

import time
from collections.abc import Collection, Set

from dedloc_kit.swarm.directory.tracker import Tracker

OPEN_SHARE = 0.5
"""Of the time that is left until the batch is full a group takes in whoever comes; the rest is for it to stand in."""


class Sought:
    """By one peer."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self.awaited: frozenset[str] = frozenset()
        """Who was expected when this peer began to look for its group."""
        self.peers: frozenset[str] = frozenset()
        """These, and who has come since."""
        self._open_until = 0.0  # the batch is not full before: the group need not stand

    def begin(self, peers: Collection[str], left: float) -> None:
        """Look for these from now on.

        :param left: seconds until the batch is probably full
        """
        self.awaited = self.peers = frozenset(peers)
        self._open_until = time.monotonic() + OPEN_SHARE * left

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
        self._tracker.peers.suspect(self.awaited.difference(members))
