"""Those who took the last step with this peer: a group without most of them may be a part that was cut off."""

import logging
import math
import time
from collections.abc import Collection

from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.swarm.directory.belief import BLIND_SECONDS, GONE_SECONDS
from dedloc_kit.swarm.directory.tracker import Tracker

_log = logging.getLogger(__name__)


class Companions:
    """Of one peer. They count until they leave, or were not seen for a minute: so a run outlives who dies.

    Whoever knows of no step has the organizer alone, if that is there: it believes nobody before it has taken a step
    itself, and would not follow a first step without it.

    :param me: this peer's id
    """

    def __init__(self, state: TrainingState, tracker: Tracker, me: str) -> None:
        self._state, self._tracker, self._me = state, tracker, me
        self._seen = self._alone = {tracker.belief.organizer: -math.inf}
        """When each was there last."""
        self._knows = False
        """Of a step? Then who took it is there if others of its row are."""
        self._looked = 0.0
        self._told = False

    def stepped(self, members: Collection[str], ago: float) -> None:
        """This peer holds the parameters that these members' round led to.

        :param ago: so many seconds have passed since; what it has not seen itself it knows only as of then
        """
        self._looked, self._told = time.monotonic(), False
        self._seen, self._knows = dict.fromkeys(members, self._looked - ago) or self._alone, bool(members)

    def look(self, rows: Collection[int]) -> None:
        """See who is there now.

        :param rows: the others of which is said that they hold this state, where peers are divided into rows
        """
        now, here = time.monotonic(), self._tracker.others().keys() | (self.of(rows) if self._knows else set())
        blind = now - self._looked if now > self._looked + BLIND_SECONDS else 0.0  # nobody could be seen
        left = self._tracker.gone(self._seen)
        self._seen = {p: now if p in here else then + blind for p, then in self._seen.items() if p not in left}
        self._looked = now

    def of(self, rows: Collection[int]) -> set[str]:
        """Those in these rows."""
        return {peer for peer in self._seen if self._tracker.division.row_of(peer) in rows} if rows else set()

    def enough(self, members: Collection[str]) -> bool:
        """May a group of this peer and these others take a step?"""
        needed = self.needed(members)
        self.tell(needed)
        return not needed

    def needed(self, members: Collection[str]) -> set[str]:
        """Who is missing in a group of this peer and these others, if it may not take a step without them.

        It may if it has more than half of the companions, or half of them with the organizer: of the parts of a swarm
        only one has. Whoever is there with another state will not take a step from this one, and is not counted.
        """
        group, others, mine = {*members, self._me}, self._tracker.others(), self._state.position
        elsewhere = {p for p, told in others.items() if told.step >= mine.step and (told.step, told.round) != mine}
        lately = {peer for peer, then in self._seen.items() if self._looked < then + GONE_SECONDS} - elsewhere
        here = len(group & self._seen.keys())
        missing = len(lately - group)
        enough = not missing or 2 * here + (self._tracker.belief.organizer in group) > here + missing
        return set() if enough else lately - group

    def led_at_first(self, needed: Collection[str]) -> bool:
        """Is it for the first step that these are needed? That one nobody takes alone, though the organizer seems to be
        gone: on a loaded machine it may only be slow to report, and the two would stand still for good."""
        return bool(needed) and not self._knows

    def tell(self, needed: Collection[str]) -> None:
        """That this peer waits for these, if there are any; once after each step."""
        if needed and not self._told:
            self._told = True
            text = "of %d peers that took the last step %d are out of reach: waiting"
            _log.warning(text, len(self._seen), len(needed))
