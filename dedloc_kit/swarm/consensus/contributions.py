"""Where a peer's samples are: fresh, waiting to be counted, counted on its branch, or rolled back. And orders alike."""

from collections.abc import Iterable
from dataclasses import dataclass

from dedloc_kit.swarm.consensus.chain import Change
from dedloc_kit.swarm.consensus.instance import Instance
from dedloc_kit.swarm.consensus.records import MAX_ORDERS, MAX_PIECES, Commit, Entry, Piece, Voter

FREE_PIECES = 4
"""Later pieces have to double what waits: so a peer whose rounds failed often still reaches any batch in few pieces."""


@dataclass(frozen=True)
class Moved:
    """What a change of the branch did to this peer's pieces."""

    counted: tuple[Piece, ...] = ()
    rolled_back: tuple[Piece, ...] = ()


class Contributions:
    """This peer's pieces. A piece is frozen when first offered: a failed round offers it again, unchanged.

    :ivar fresh: samples that no piece holds yet
    :ivar waiting: pieces that no commit of this branch counts
    """

    def __init__(self) -> None:
        self.fresh = 0
        self.fresh_weight = 0
        self.waiting: list[Piece] = []
        self._counted: dict[str, tuple[Piece, ...]] = {}
        self._mine: dict[str, Piece] = {}

    @property
    def samples(self) -> int:
        """What this peer would offer now."""
        return sum(piece.samples for piece in self.waiting) + (self.fresh if self._may_freeze else 0)

    @property
    def _may_freeze(self) -> bool:
        count, waiting = len(self.waiting), sum(piece.samples for piece in self.waiting)
        return count < FREE_PIECES or (count < MAX_PIECES and self.fresh >= waiting)

    @property
    def counted(self) -> tuple[Piece, ...]:
        """Pieces that this branch counts."""
        return tuple(piece for pieces in self._counted.values() for piece in pieces)

    def add(self, samples: int, weight: int) -> None:
        """Samples that were computed on the branch's newest state."""
        self.fresh += samples
        self.fresh_weight += weight

    def freeze(self, digest: str) -> Piece | None:
        """Make a piece of what is fresh; None if nothing is, or it is too little for so many pieces.

        :param digest: of its gradients
        """
        if not self.fresh or not self._may_freeze:
            return None
        piece = Piece(hash=digest, samples=self.fresh, weight=self.fresh_weight)
        self.fresh = self.fresh_weight = 0
        self.waiting.append(piece)
        self._mine[digest] = piece
        return piece

    def entry(self, instance: Instance, voter: Voter, orders: Iterable[str], about: str = "") -> Entry:
        """What this peer brings to a group, not signed yet."""
        return Entry(
            run_id=instance.run_id,
            part=instance.part,
            previous=instance.previous,
            voter=voter,
            pieces=tuple(self.waiting),
            orders=tuple(sorted(orders)[:MAX_ORDERS]),
            about=about,
        )

    def follow(self, change: Change, rollback_digest: str) -> Moved:
        """Move pieces as the branch moved. If commits were left, what waits was computed on states that are no more.

        :param rollback_digest: names a piece of what was fresh then
        """
        rolled: list[Piece] = []
        for record in change.left:
            rolled += self._counted.pop(record.link, ())
        if any(isinstance(record, Commit) for record in change.left):
            if self.fresh:
                piece = Piece(hash=rollback_digest, samples=self.fresh, weight=self.fresh_weight)
                self._mine[piece.hash] = piece
                rolled.append(piece)
            rolled += self.waiting
            self.waiting, self.fresh, self.fresh_weight = [], 0, 0
        counted: list[Piece] = []
        for record in change.taken:
            if isinstance(record, Commit):
                hashes = [piece.hash for entry in record.value.counted for piece in entry.pieces]
                if mine := tuple(self._mine[each] for each in hashes if each in self._mine):
                    self._counted[record.link] = mine
                    counted += mine
        found = {piece.hash for piece in counted}
        self.waiting = [piece for piece in self.waiting if piece.hash not in found]
        return Moved(tuple(counted), tuple(piece for piece in rolled if piece.hash not in found))

    def forget(self, links: Iterable[str]) -> None:
        """Of commits so old that no branch leaves them any more."""
        for link in links:
            for piece in self._counted.pop(link, ()):
                del self._mine[piece.hash]


class Orders:
    """Orders that this peer knows of, by hash. :ivar waiting: on no commit of this branch yet"""

    def __init__(self) -> None:
        self.waiting: set[str] = set()
        self.done: set[str] = set()

    def add(self, order: str) -> None:
        if order not in self.done:
            self.waiting.add(order)

    def follow(self, change: Change) -> tuple[tuple[str, str], ...]:
        """Returns (order, link of its commit) of those that are to be carried out now, each once on a branch."""
        for record in change.left:
            if isinstance(record, Commit):
                undone = self.done & set(record.value.orders)
                self.done -= undone
                self.waiting |= undone
        due = []
        for record in change.taken:
            if isinstance(record, Commit):
                new = sorted(set(record.value.orders) - self.done)
                due += [(order, record.link) for order in new]
                self.done |= set(new)
                self.waiting -= set(new)
        return tuple(due)
