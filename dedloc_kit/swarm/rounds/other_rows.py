"""The other rows of a round: what they have, whether they have to come, and whether they did what was said of them."""

from collections import Counter
from collections.abc import Collection, Mapping

from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.swarm.averaging.matchmaking.group import Coming, Member, RowCall
from dedloc_kit.swarm.averaging.matchmaking.grouping import MAX_LEADERS
from dedloc_kit.swarm.directory.summaries import Row
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.network.identity import Signer


class OtherRows:
    """Of one peer; there are none where there is one group."""

    def __init__(self, state: TrainingState, tracker: Tracker, signer: Signer) -> None:
        self._state, self._tracker, self._signer = state, tracker, signer

    def seen(self) -> dict[int, Row]:
        """Those that hold the same state as this peer, by their numbers."""
        return self._tracker.rows_at(*self._state.position)

    def unheard(self) -> bool:
        """Are there others of which nothing is heard yet since the last step, or since this peer has come?

        A quick row would otherwise think that it is all there is, or would not know whom to ask.
        """
        return self._tracker.misses_a_row()

    def call(self, member: Member) -> RowCall | None:
        """What it takes to meet them; none where there is one group.

        :param member: what this peer says of itself in its row
        """
        division, state = self._tracker.division, self._state
        if division.rows == 1:
            return None
        seen = self.seen()
        others = sum(row.peers for row in seen.values())
        member = member.model_copy(update={"group_size": member.group_size + others})
        coming = Coming(run_id=state.run.run_id, step=state.step + 1, after=state.round, member=member)
        return RowCall(
            division=division,
            signed=self._signer.sign(coming),
            able={number: row.able for number, row in seen.items()},
            expected=frozenset(seen),
        )

    def hosts(self) -> tuple[str, ...]:
        """Whom a client asks whose own row has nobody who can be reached: all of a row ask the same."""
        division, seen = self._tracker.division, self.seen()
        mine = division.row_of(self._signer.peer)
        nearest = sorted(seen, key=lambda row: (row - mine) % division.rows)
        return tuple(peer for row in nearest for peer in seen[row].able)[:MAX_LEADERS]

    def here(self, members: Collection[str]) -> set[int]:
        """The rows from which a group has members."""
        return {self._tracker.division.row_of(peer) for peer in members}

    def seen_in(self, members: Collection[str]) -> list[Row]:
        """Those of which a group has members."""
        seen = self.seen()
        return [seen[row] for row in self.here(members) & seen.keys()] if seen else []

    def missed(self, expected: Collection[int], members: Collection[str]) -> None:
        """A group stands; who spoke for rows that did not come is not counted until it speaks again."""
        seen, here = self.seen(), self.here(members)
        for row in seen.keys() & set(expected) - here:
            self._tracker.suspicion.suspect(seen[row].speakers)

    def fell_short(self, weights: Mapping[str, int]) -> None:
        """There were too few samples; who had said more of its row than it brought is not counted until it speaks
        again: members may have died, but not half of a row.

        :param weights: samples of each member that counted
        """
        brought = Counter[int]()
        for peer, weight in weights.items():
            brought[self._tracker.division.row_of(peer)] += weight
        for number, row in self.seen().items():
            if 2 * brought[number] < row.samples:
                self._tracker.suspicion.suspect(row.speakers)
            elif brought[number] < row.samples:
                self._tracker.suspicion.doubt(row.speakers)
