"""Whom a peer follows where peers are divided into rows: those of its own row, and what is said of the others.

Now and then it looks at all rows: before it has the state, to prove a step that its row alone cannot prove, and, if
others can reach it, to know where the others of them are. Who adds no samples (a follower, or one that only looks on)
follows all.
"""

import math
import time
from collections.abc import Collection, Sequence

from dedloc_kit.records import Progress
from dedloc_kit.swarm.directory.rows import ONE, Division
from dedloc_kit.swarm.directory.summaries import Summaries
from dedloc_kit.swarm.network.kinds import CELLS

PROOF_SECONDS = 30.0
"""Between two looks at all rows, of a peer that is behind."""
MEETING_SECONDS = 600.0
"""The same of one that others can reach: it dials whom it does not know yet."""


class Following:
    """Of one peer.

    :param me: its id
    """

    def __init__(self, me: str, summaries: Summaries) -> None:
        self._me, self._summaries = me, summaries
        self.division = ONE
        self._saw_all = -math.inf

    def divide(self, division: Division) -> None:
        """This is how those are divided now who hold this peer's state."""
        self.division = division

    def near(self, peer: str) -> bool:
        """Is a peer in this one's row?"""
        return self.division.row_of(peer) == self.division.row_of(self._me)

    def cells(self, mine: Progress | None, *, led: bool) -> Sequence[int]:
        """Which ones it looks into now; none where there is one group.

        :param mine: what this peer last said of itself, if anything
        :param led: the organizer is there, whose word proves a step
        """
        said = self._summaries.told()
        if not said and self.division.rows == 1:
            return ()
        if mine is None or mine.follower or self._due(mine, led, any(row.step > mine.step for row in said.values())):
            self._saw_all = time.monotonic()
            return range(CELLS)
        return self.division.cells(self._me)

    def _due(self, mine: Progress, led: bool, behind: bool) -> bool:
        """Is it time to look at all rows again?"""
        ago = time.monotonic() - self._saw_all
        # Without the organizer it takes those who brought most of the last step to prove a newer one.
        return (behind and not led and ago > PROOF_SECONDS) or (not mine.client_mode and ago > MEETING_SECONDS)

    def misses_a_row(self, mine: Progress, able: Collection[str]) -> bool:
        """Is there another row of which nobody says yet that it is where this peer is?

        :param able: others who can be reached, and may so be among those who speak for a row
        """
        said = self._summaries.told()
        there = {self.division.row_of(peer) for peer in (*said, *able)} - {self.division.row_of(self._me)}
        where = self.division.rows, mine.step, mine.round
        heard = {row.row for row in said.values() if (row.rows, row.step, row.round) == where}
        return bool(there - heard)

    def said_to_be_there(self, peers: Collection[str]) -> set[str]:
        """Those of these peers who are in a row of which somebody speaks."""
        rows = {summary.row for summary in self._summaries.told().values() if summary.rows == self.division.rows}
        return {peer for peer in peers if self.division.row_of(peer) in rows}
