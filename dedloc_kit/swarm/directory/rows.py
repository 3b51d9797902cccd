"""Into how many rows a swarm is divided, and who is in which.

Both follow from what all who hold the same state know alike: how many peers counted in the last global steps, by their
receipts, and the step's number. Nobody has to be asked, no summary can change it, and peers that hold different states
do not meet anyhow.
"""

from dataclasses import dataclass

from dedloc_kit.swarm.network.kinds import AHEAD, CELLS, COPIES, cell_of, cells_of, share_of

COPIED_ROWS = 8
"""From so many rows on what all ask for lies in copies: a thousand peers would ask one node for 4 MB a second."""


@dataclass(frozen=True)
class Division:
    """How the peers of one state are divided."""

    rows: int = 1
    """A power of two, so that a row is some whole cells."""
    step: int = 0
    """The global step whose parameters they hold."""

    def row_of(self, peer: str) -> int:
        return cell_of(peer, self.step) % self.rows

    @property
    def copied(self) -> bool:
        """Does what all ask for lie in copies?"""
        return self.rows >= COPIED_ROWS

    def copy_for(self, peer: str) -> int | None:
        """Which of these a peer asks for; none if there is but one."""
        return share_of(peer) % COPIES if self.copied else None

    def together(self, one: str, other: str) -> bool:
        """Are two peers in one row, now or, shortly before an epoch ends, in the next one?"""
        steps = {self.step, self.step + AHEAD}
        return any((cell_of(one, step) - cell_of(other, step)) % self.rows == 0 for step in steps)

    def cells(self, me: str) -> tuple[int, ...]:
        """Where the records of a peer's row lie, and shortly before an epoch ends those of its next one; none where
        there is one group."""
        if self.rows == 1:
            return ()
        rows = {cell % self.rows for cell in cells_of(me, self.step)}
        return tuple(cell for cell in range(CELLS) if cell % self.rows in rows)


ONE = Division()
