"""Who was to come to a global step and does not count in it, as one peer tells it.

Nobody's word is taken for it. What this peer has not seen itself it tells only of who gave to the step before: a leader
may name whom it likes as members, and anybody may say in the directory that it is there. Rows that failed are told as
rows: nobody can read dozens of names, and of members of other rows this peer has seen little. Who of them did not come
is told as far as it follows them, as the coordinator does.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Absence, AbsentRow, LeftOut
from dedloc_kit.swarm.averaging.result import RoundResult
from dedloc_kit.swarm.directory.tracker import Tracker

NOT_COME: Absence = "did not come"
NOT_COUNTED: Absence = "was not counted"


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

        :param awaited: those of this peer's row who were expected
        :param members: those of the group that stood
        """
        others = self._tracker.others()
        absent = {p: why for p, why in outcome.absent.items() if p in self._gave or self._saw(p, why)}
        far = {peer for peer in self._tracker.at(*self._state.position) if not self._tracker.is_near(peer)}
        absent |= dict.fromkeys(((awaited | far) & self._gave).difference(members), NOT_COME)
        self._missing |= {peer: why for peer, why in absent.items() if not (peer in others and others[peer].follower)}

    def _saw(self, peer: str, why: Absence) -> bool:
        """Has this peer seen that itself? Of another row it does not see who is there and does not count."""
        return why != NOT_COME and (why != NOT_COUNTED or self._tracker.is_near(peer))

    def left_out(self, counted: Collection[str], members: Collection[str]) -> LeftOut | None:
        """Of a step that was taken just now.

        :param counted: who counts in it
        :param members: those of the group that took it
        """
        missing = {peer: why for peer, why in self._missing.items() if peer not in counted}
        came = {self._tracker.division.row_of(peer) for peer in members}
        rows = list[AbsentRow]()
        for row, peers in sorted(self._failed_rows(missing, counted).items()):
            rows.append(AbsentRow(peers=len(peers), why=NOT_COUNTED if row in came else NOT_COME))
            missing = {peer: why for peer, why in missing.items() if peer not in peers}
        return LeftOut.of(missing, rows)

    def _failed_rows(self, missing: Collection[str], counted: Collection[str]) -> dict[int, set[str]]:
        """Who of each row is missing of which nobody counts: all who gave to the step before, unless they have left."""
        failed, division = defaultdict[int, set[str]](set), self._tracker.division
        if division.rows > 1:
            there = {division.row_of(peer) for peer in counted}
            for peer in (self._gave - self._tracker.gone(self._gave)).union(missing):
                if division.row_of(peer) not in there:
                    failed[division.row_of(peer)].add(peer)
        return failed
