"""Who was to come to a global step and does not count in it, as one peer tells it.

Nobody's word is taken for it. What this peer has not seen itself it tells only of who gave to the step before: a leader
may name whom it likes as members, and anybody may say in the directory that it is there.
"""

from collections.abc import Collection, Mapping

from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Absence, LeftOut
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.directory.tracker import Tracker

NOT_COME: Absence = "did not come"


class Missing:
    """In the rounds for the next step so far."""

    def __init__(self, state: TrainingState, tracker: Tracker) -> None:
        self._state, self._tracker = state, tracker
        self._gave: frozenset[str] = frozenset()
        self._missing: dict[str, Absence] = {}

    def stepped(self, brought: Mapping[str, int]) -> None:
        """A step was taken, with so many samples of each member."""
        self._gave, self._missing = frozenset(peer for peer, samples in brought.items() if samples), {}

    def note(self, outcome: RoundResult, awaited: frozenset[str], members: Collection[str]) -> None:
        """Another round has ended.

        :param awaited: those who were expected
        :param members: those of the group that stood
        """
        others = self._tracker.others()
        absent = {p: why for p, why in outcome.absent.items() if p in self._gave or why != NOT_COME}
        absent |= dict.fromkeys((awaited & self._gave).difference(members), NOT_COME)
        self._missing |= {peer: why for peer, why in absent.items() if not (peer in others and others[peer].follower)}

    def left_out(self, counted: Collection[str]) -> LeftOut | None:
        """Of a step that was taken just now.

        :param counted: who counts in it
        """
        return LeftOut.of({peer: why for peer, why in self._missing.items() if peer not in counted})
