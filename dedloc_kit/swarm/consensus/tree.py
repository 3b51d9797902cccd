"""Along which ways relays hand on letters: a tree below the decider, the same at all members."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from dedloc_kit.records.record import PeerId

FANOUT = 8
"""Of a row. 1,024 contributions have 1.8 MB: a relay that sent them to a whole row would be busy for ten seconds."""
HEADS = 4
"""First relays of other rows, below each."""


@dataclass(frozen=True)
class Tree:
    """The decider hands on to the first relays of some rows, these to those of others, and each to its row.

    :ivar rows: the members of each row
    :ivar reducers: who can be reached and so can be a relay, best first
    """

    rows: tuple[tuple[PeerId, ...], ...]
    reducers: tuple[PeerId, ...]

    @cached_property
    def members(self) -> tuple[PeerId, ...]:
        return tuple(member for row in self.rows for member in row)

    @cached_property
    def places(self) -> Mapping[PeerId, int]:
        return {member: place for place, member in enumerate(self.members)}

    @cached_property
    def relays(self) -> frozenset[PeerId]:
        return frozenset(self.reducers)

    def above(self, member: PeerId, root: PeerId) -> tuple[PeerId, ...]:
        """The relays between a member and the root, nearest first, then the root; nothing for the root itself."""
        parents, found = self._of(root).parents, list[PeerId]()
        while member != root:
            member = parents[member]
            found.append(member)
        return tuple(found)

    def below(self, member: PeerId, root: PeerId, passed: Set[PeerId] = frozenset()) -> tuple[PeerId, ...]:
        """To whom a member hands on what the root tells all; those below a relay that is passed over in its place."""
        found: list[PeerId] = []
        for child in self._of(root).children.get(member, ()):
            found += self.below(child, root, passed) if child in passed else (child,)
        return tuple(found)

    def _of(self, root: PeerId) -> "_Branches":
        if root not in self._known:
            parents: dict[PeerId, PeerId] = {}
            heads = [order[0] for order in self._orders if root not in order and order[0] in self.relays]
            above = (root, *heads)
            for order in self._orders:
                parents |= self._parents(order, root)
            for place, head in enumerate(heads):
                parents[head] = above[place // HEADS]
            children: dict[PeerId, list[PeerId]] = {}
            for member, parent in parents.items():
                children.setdefault(parent, []).append(member)
            self._known[root] = _Branches(parents, children)
        return self._known[root]

    @cached_property
    def _known(self) -> dict[PeerId, "_Branches"]:
        return {}

    @cached_property
    def _orders(self) -> tuple[tuple[PeerId, ...], ...]:
        """Of each row its relays, best first, then the others."""
        rank = {reducer: place for place, reducer in enumerate(self.reducers)}
        return tuple(tuple(sorted(row, key=lambda m: rank.get(m, len(rank)))) for row in self.rows)

    def _parents(self, order: Sequence[PeerId], root: PeerId) -> dict[PeerId, PeerId]:
        """In the order of a heap, with so many below each that the relays suffice."""
        if root in order:
            order = (root, *(member for member in order if member != root))
        relays = sum(member in self.relays for member in order)
        fanout = max(FANOUT, math.ceil((len(order) - 1) / max(1, relays)))
        found = {}
        for place, member in enumerate(order):
            parent = order[(place - 1) // fanout] if place else root
            if member != root:
                found[member] = parent if parent in self.relays else root
        return found


class Ways:
    """One member's neighbours in the tree.

    :ivar root: whom it takes for the decider
    :ivar passed: members that are passed over
    :ivar adopted: members that asked this one, because their relays do nothing
    :ivar direct: whether this member goes past its own relays
    """

    def __init__(self, tree: Tree, me: PeerId, root: PeerId) -> None:
        self.tree, self.me, self.root = tree, me, root
        self.passed: set[PeerId] = set()
        self.adopted: set[PeerId] = set()
        self.direct = False

    def go_past_relays(self) -> None:
        """Ask the decider itself."""
        self.direct = True

    @property
    def leads(self) -> bool:
        return self.root == self.me

    @property
    def up(self) -> PeerId:
        """To whom letters for the root go."""
        return self.root if self.direct else self.up_to(self.root)

    def up_to(self, root: PeerId) -> PeerId:
        """The nearest relay on the way to a root."""
        return next((peer for peer in self.tree.above(self.me, root) if peer not in self.passed), root)

    def down(self, root: PeerId, to: PeerId = "") -> list[PeerId]:
        """To whom letters of a root go, or those for one member."""
        below = set(self.tree.below(self.me, root, self.passed))
        if root == self.root:
            below = (below | self.adopted) - self.passed
        if to:
            below = {to} if to in below else below & set(self.tree.above(to, root))
        return sorted(below)

    def is_above(self, relay: PeerId, member: PeerId) -> bool:
        return relay in self.tree.above(member, self.root)

    def adopt(self, member: PeerId) -> None:
        self.adopted.add(member)

    def pass_over(self, member: PeerId) -> None:
        self.passed.add(member)
        self.adopted.discard(member)

    def follow(self, root: PeerId) -> None:
        """Another decider: the last one has failed."""
        self.passed |= {self.root} - {self.me}
        self.root = root
        self.start()

    def start(self) -> None:
        self.adopted, self.direct = set(), False


@dataclass(frozen=True)
class _Branches:
    """The tree below one root."""

    parents: Mapping[PeerId, PeerId]
    children: Mapping[PeerId, Sequence[PeerId]]
