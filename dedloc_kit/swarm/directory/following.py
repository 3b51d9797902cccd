"""Whom a peer follows where peers are divided into rows: those of its own row, and what is said of the others.

Before it has the state it looks at all rows, and later only for a proof: to prove a step that others say they have
taken, where the organizer says nothing, takes those who brought most of the last one. Who adds no samples (a follower,
or one that only looks on) follows all. Connections go by rows as well, for each costs something at both ends.
"""

import math
import time
from collections.abc import Collection, Mapping, Sequence

from dedloc_kit.learning.train.state.state import Position
from dedloc_kit.records.progress import Progress, RowSummary
from dedloc_kit.swarm.directory.rows import ONE, Division
from dedloc_kit.swarm.directory.summaries import Summaries
from dedloc_kit.swarm.network.kinds import CELLS

HEARING_SECONDS = 15.0
"""After a step, and after it has come, a peer waits for so long at most to hear of the other rows."""
LATE_SECONDS = 3.0
"""Who takes a step with the others may hear so much earlier that they have taken it."""
PROOF_SECONDS, SELDOM_SECONDS = 4.0, 30.0
"""Between two looks at all rows of a peer that is behind: at first, and when the last ones have proven nothing."""


class Following:
    """Of one peer.

    :param me: its id
    """

    def __init__(self, me: str, summaries: Summaries) -> None:
        self._me, self._summaries = me, summaries
        self.division = ONE
        self._position: Position | None = None
        self._came = self._got_on = -math.inf  # when it first held a state, and when it came to the one that it holds
        self._saw_all = -math.inf
        self._forget()

    def divide(self, position: Position, division: Division) -> None:
        """This peer holds this state, and this is how those are divided who do."""
        now = time.monotonic()
        if self._position is None:
            self._came = now
        if position != self._position:
            self._got_on = now
            self._forget()
        self._position, self.division = position, division

    def _forget(self) -> None:
        """This peer has got on, or is not behind."""
        self._some_ahead = self._most_ahead = math.inf  # since when
        self._pause = PROOF_SECONDS

    def near(self, peer: str) -> bool:
        """Is a peer in this one's row?"""
        return self.division.row_of(peer) == self.division.row_of(self._me)

    def cells(self, mine: Progress | None, *, led: bool) -> Sequence[int]:
        """Which ones it looks into now; none where there is one group.

        :param mine: what this peer last said of itself, if anything
        :param led: the organizer is there, whose word proves a step
        """
        if not self._summaries.told() and self.division.rows == 1:
            return ()
        if mine is None or mine.follower or (not led and self._needs_proof(mine)):
            self._saw_all = time.monotonic()
            return range(CELLS)
        return self.division.cells(self._me)

    def _needs_proof(self, mine: Progress) -> bool:
        """Do others say that they are further than this peer, and is it time to look whether that is so?

        Soon if most say so: then they may prove it. If that fails again and again, or if only some say so, who may be
        wrong, only now and then.
        """
        now, said = time.monotonic(), self._summaries.told().values()
        ahead = sum(row.step > mine.step for row in said)
        if not ahead:
            self._forget()
            return False
        self._some_ahead = min(self._some_ahead, now)
        if 2 * ahead < len(said):
            self._most_ahead, self._pause = math.inf, PROOF_SECONDS
            return now >= max(self._some_ahead + LATE_SECONDS, self._saw_all + SELDOM_SECONDS)
        self._most_ahead = min(self._most_ahead, now)
        if now < max(self._most_ahead + LATE_SECONDS, self._saw_all + self._pause):
            return False
        self._pause = min(2 * self._pause, SELDOM_SECONDS)
        return True

    def misses_a_row(self, able: Collection[str]) -> bool:
        """Is there another row of which nobody has said yet that it is where this peer is, and is it still waited for?

        It takes a moment after each step, above all if the rows are others than before. Who has just come cannot know
        which rows there are.

        :param able: others who can be reached, and may so be among those who speak for a row
        """
        now, division, said = time.monotonic(), self.division, self._summaries.told()
        if self._position is None or now >= self._got_on + HEARING_SECONDS:
            return False
        new = now < self._came + HEARING_SECONDS
        there = set(range(division.rows) if new else map(division.row_of, (*said, *able)))
        where = (division.rows, *self._position)
        heard = {row.row for row in said.values() if (row.rows, row.step, row.round) == where}
        return bool(there - heard - {division.row_of(self._me)})

    def connected(self, mine: Progress | None, alive: Mapping[str, Progress]) -> dict[str, Progress | RowSummary]:
        """To whom this peer stays connected: its row and its next one; and who speaks for the others, if it may have to
        ask them. To others it has a connection when it needs one.

        :param mine: what this peer last said of itself, if anything
        :param alive: everyone of whom it knows
        """
        said = self._summaries.told()
        if mine is None and said:
            return {**said}
        near = {peer: told for peer, told in alive.items() if self.division.together(self._me, peer)}
        # A client leads no row; it asks those of others only if nobody can lead its own.
        asks = mine is None or not mine.client_mode or not any(told.addresses for told in near.values())
        return {**said, **near} if asks else {**near}

    def said_to_be_there(self, peers: Collection[str]) -> set[str]:
        """Those of these peers who are in a row of which somebody speaks."""
        rows = {summary.row for summary in self._summaries.told().values() if summary.rows == self.division.rows}
        return {peer for peer in peers if self.division.row_of(peer) in rows}
