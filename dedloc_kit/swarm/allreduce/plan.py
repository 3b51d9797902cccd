"""Which member reduces which chunk of the flat vector (butterfly all-reduce, DeDLOC section 3.2)."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from statistics import median

from hivemind.averaging.load_balancing import load_balance_peers

from dedloc_kit.learning.train.flat import FlatLayout


@dataclass(frozen=True)
class Plan:
    """The members of a group, and the chunks of the vector, which depend on the model alone.

    :ivar shares: how much of the vector each member is to reduce; 0 for clients
    :ivar chunks: begin and end of each
    :ivar owners: who reduces each chunk while all reducers live
    """

    members: tuple[str, ...]
    layout: FlatLayout
    shares: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...] = field(init=False)
    owners: tuple[int, ...] = field(init=False)
    _dealt: dict[frozenset[int], tuple[int, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", self.layout.grid())
        object.__setattr__(self, "owners", tuple(sorted(islice(self._turns(), len(self.chunks)))))

    @cached_property
    def reducers(self) -> tuple[int, ...]:
        """Members that reduce, if only what a dead one leaves: by place in the group."""
        return tuple(member for member, share in enumerate(self.shares) if share)

    def ranking(self, name: str) -> tuple[int, ...]:
        """Reducers in the order in which they decide: alike for all members, by turns, the slower half last."""
        usual = median(self.shares[reducer] for reducer in self.reducers)

        def rank(reducer: int) -> tuple[bool, bytes]:
            slow = self.shares[reducer] < usual
            return slow, hashlib.sha256(f"{name} {self.members[reducer]}".encode()).digest()

        return tuple(sorted(self.reducers, key=rank))

    def owners_among(self, living: Collection[int]) -> tuple[int, ...]:
        """Who reduces each chunk if only these reducers live: only the chunks of the others move."""
        key = frozenset(living)
        if key not in self._dealt:
            self._dealt[key] = self._inherited(key)
        return self._dealt[key]

    def _inherited(self, living: frozenset[int]) -> tuple[int, ...]:
        """The n-th chunk of a dead reducer goes to the first living one from place n of a fixed order on: so what one
        has inherited stays there when another one dies."""
        dealt, owners = Counter[int](), []
        for owner in self.owners:
            if owner not in living:
                order = chain(islice(self._heirs, dealt[owner], None), self._heirs, self.reducers)
                dealt[owner] += 1
                owner = next(reducer for reducer in order if reducer in living)
            owners.append(owner)
        return tuple(owners)

    @cached_property
    def _heirs(self) -> tuple[int, ...]:
        return tuple(islice(self._turns(), len(self.chunks), 2 * len(self.chunks)))

    def _turns(self) -> Iterator[int]:
        """Who gets one chunk more after the other, in proportion to the shares (d'Hondt)."""
        turns = [(1 / self.shares[member], member, 1) for member in self.reducers]
        heapq.heapify(turns)
        while True:
            _, member, count = turns[0]
            yield member
            heapq.heapreplace(turns, ((count + 1) / self.shares[member], member, count + 1))


def chunk_counts(owners: Sequence[int], members: int) -> list[int]:
    """How many chunks each member reduces."""
    counts = [0] * members
    for owner in owners:
        counts[owner] += 1
    return counts


def balanced(size: int, bandwidths: Sequence[float | None]) -> tuple[int, ...]:
    """How many values each member reduces, so that no line is the last; takes a while for hundreds.

    :param bandwidths: 0 for clients, None if it is not known
    """
    return tuple(load_balance_peers(size, bandwidths, 0))
