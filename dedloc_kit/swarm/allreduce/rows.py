"""The data plane of one round as a plan: which chunk goes from whom to whom. Pure functions, the same at all members.

Members are divided into rows. Within a row each chunk has an owner, which adds up what the row's members send. Of the
owners of a chunk in all rows one is its finisher: it adds up the rows' sums and encodes the average once. The other
owners hand on its very bytes in their rows. One row is a butterfly all-reduce. Agreement knows nothing of rows.
"""

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import NamedTuple

from dedloc_kit.records.record import PeerId

MAX_ROW = 64
"""Members of a row on average. In smaller rows the death of a reducer costs more, in larger ones streams do."""
CHUNKS_PER_REDUCER = 5
"""In a row of reducers alone: nobody then has more than 1.2 times its share, whatever the shares are."""
MAX_CHUNK = 2**17
"""Values that travel in one message at most."""
Row = int


class Transfer(NamedTuple):
    """A chunk on its way between two members."""

    source: PeerId
    target: PeerId
    chunk: int


@dataclass(frozen=True)
class Deal:
    """The transfers of a plan while the same reducers live.

    :ivar living: the reducers that live
    :ivar owners: of each row the owner of each chunk; nothing for a row without a living reducer, which does not count
    :ivar finishers: of each chunk the row whose owner finishes it
    """

    plan: "RowPlan"
    living: frozenset[PeerId]
    owners: tuple[tuple[PeerId, ...], ...]
    finishers: tuple[Row, ...]

    @cached_property
    def owned(self) -> Mapping[PeerId, tuple[int, ...]]:
        """The chunks of each owner."""
        found: dict[PeerId, list[int]] = {}
        for owners in self.owners:
            for chunk, owner in enumerate(owners):
                found.setdefault(owner, []).append(chunk)
        return {owner: tuple(chunks) for owner, chunks in found.items()}

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows that count."""
        return tuple(row for row, owners in enumerate(self.owners) if owners)

    def finisher(self, chunk: int) -> PeerId:
        return self.owners[self.finishers[chunk]][chunk]

    def finishes(self, owner: PeerId, chunk: int) -> bool:
        return self.finisher(chunk) == owner

    def source(self, member: PeerId, chunk: int) -> PeerId | None:
        """From whom a member gets an average; None if it makes it itself, or its row has no reducer."""
        owners = self.owners[self.plan.row_of[member]]
        if not owners or self.finisher(chunk) == member:
            return None
        return owners[chunk] if owners[chunk] != member else self.finisher(chunk)

    def parts(self, member: PeerId) -> tuple[Transfer, ...]:
        """What a member sends to the owners of its row, in the order in which all send: owners take turns."""
        owners = self.owners[self.plan.row_of[member]]
        order = sorted(range(len(owners)), key=lambda chunk: (self._turn[owners[chunk], chunk], chunk))
        return tuple(Transfer(member, owners[chunk], chunk) for chunk in order if owners[chunk] != member)

    def backups(self, owner: PeerId) -> tuple[Transfer, ...]:
        """An owner's own parts of its chunks, to those who own them if it dies.

        So it still counts if it dies after all its parts are sent; otherwise all averages would have to be made and
        sent anew without it.
        """
        heirs = self.plan.owners_if(self.plan.row_of[owner], self.living - {owner})
        return tuple(Transfer(owner, heirs[c], c) for c in self.owned.get(owner, ())) if heirs else ()

    @cached_property
    def _turn(self) -> Mapping[tuple[PeerId, int], int]:
        return {(owner, chunk): turn for owner, chunks in self.owned.items() for turn, chunk in enumerate(chunks)}

    def sums(self, owner: PeerId) -> tuple[Transfer, ...]:
        """The row's sums that an owner sends to the chunks' finishers."""
        mine = self.owned.get(owner, ())
        return tuple(Transfer(owner, self.finisher(c), c) for c in mine if self.finisher(c) != owner)

    def averages(self, owner: PeerId, chunk: int) -> tuple[Transfer, ...]:
        """An average from its finisher to the owners in other rows, and from each owner to the members of its row."""
        row = self.plan.row_of[owner]
        others: tuple[PeerId, ...] = ()
        if self.finishes(owner, chunk):
            others = tuple(owners[chunk] for owners in self.owners if owners and owners[chunk] != owner)
        mates = (mate for mate in self.plan.teams[row] if mate != owner)
        return tuple(Transfer(owner, target, chunk) for target in (*others, *mates))


@dataclass(frozen=True)
class RowPlan:
    """How the members of a round reduce a vector on a fixed grid of chunks.

    :ivar rows: of each member, counted from 0
    :ivar shares: how much each member reduces for its row, in any unit; 0 if it does not reduce
    :ivar sizes: values in each chunk
    """

    members: tuple[PeerId, ...]
    rows: tuple[Row, ...]
    shares: tuple[float, ...]
    sizes: tuple[int, ...]
    _deals: dict[frozenset[PeerId], Deal] = field(init=False, repr=False, compare=False, default_factory=dict)

    @cached_property
    def row_of(self) -> Mapping[PeerId, Row]:
        return dict(zip(self.members, self.rows, strict=True))

    @cached_property
    def teams(self) -> tuple[tuple[PeerId, ...], ...]:
        """The members of each row."""
        found: list[list[PeerId]] = [[] for _ in range(max(self.rows) + 1)]
        for member, row in zip(self.members, self.rows, strict=True):
            found[row].append(member)
        return tuple(map(tuple, found))

    @cached_property
    def reducers(self) -> frozenset[PeerId]:
        """Members with a share."""
        return frozenset(m for m, share in zip(self.members, self.shares, strict=True) if share > 0)

    def deal(self, living: Set[PeerId]) -> Deal:
        """The transfers if only these reducers live.

        A chunk of a dead owner goes to the next in that chunk's own order who lives: so only transfers from and to the
        dead change, whoever else is dead.
        """
        key = self.reducers & living
        if key not in self._deals:
            owners = tuple(self.owners_if(row, key) for row in range(len(self.teams)))
            self._deals[key] = Deal(self, key, owners, self._finishers(owners))
        return self._deals[key]

    def owners_if(self, row: Row, living: frozenset[PeerId]) -> tuple[PeerId, ...]:
        """The owner of each chunk in a row if only these reducers live."""
        first, heirs = self._first[row]
        if living.isdisjoint(self.teams[row]):
            return ()
        found = []
        for chunk, owner in enumerate(first):
            order = chain((owner,), islice(heirs, chunk, None), heirs, self.teams[row])
            found.append(next(each for each in order if each in living))
        return tuple(found)

    @cached_property
    def _first(self) -> tuple[tuple[tuple[PeerId, ...], tuple[PeerId, ...]], ...]:
        """Of each row the owner of each chunk if all live; and who would get one chunk more after the other."""
        found = []
        for team in self.teams:
            turns, count = self._turns(team), len(self.sizes)
            owners = sorted(islice(turns, count), key=team.index)
            found.append((tuple(owners), tuple(islice(turns, count))))
        return tuple(found)

    def _turns(self, team: Sequence[PeerId]) -> Iterator[PeerId]:
        """Chunk by chunk the reducer that has least for its share (d'Hondt)."""
        shares = [(place, self._share_of[member]) for place, member in enumerate(team)]
        turns = [(1 / share, place, 1) for place, share in shares if share > 0]
        heapq.heapify(turns)
        while turns:
            _, place, count = turns[0]
            yield team[place]
            heapq.heapreplace(turns, ((count + 1) / shares[place][1], place, count + 1))

    @cached_property
    def _share_of(self) -> Mapping[PeerId, float]:
        return dict(zip(self.members, self.shares, strict=True))

    def _finishers(self, owners: Sequence[Sequence[PeerId]]) -> tuple[Row, ...]:
        """Rows take turns; a row without an owner is passed over."""
        count = len(owners)
        if not any(owners):
            return ()
        rows = [next(row for k in range(count) if owners[row := (turn + k) % count]) for turn in range(count)]
        return tuple(rows[chunk % count] for chunk in range(len(self.sizes)))


# How many rows, who is in which, and how much each reduces


def chunk_length(values: int) -> int:
    """Values in a chunk of a model's grid: small enough that 64 reducers share them evenly."""
    return min(MAX_CHUNK, max(1, math.ceil(values / (CHUNKS_PER_REDUCER * MAX_ROW))))


def row_count(members: int) -> int:
    return max(1, math.ceil(members / MAX_ROW))


def divide(bandwidths: Mapping[PeerId, float], rows: int) -> dict[PeerId, Row]:
    """The row of each member, so that all rows have like bandwidth for their members.

    :param bandwidths: 0 for those that do not reduce
    """
    order = sorted(bandwidths, key=lambda peer: (-bandwidths[peer], peer))
    turns = chain.from_iterable(chain(range(rows), reversed(range(rows))) for _ in order)
    return dict(zip(order, turns, strict=False))


def shares(bandwidths: Sequence[float], members: int) -> list[float]:
    """What each reducer of a row has to reduce so that all lines are busy for the same time; they sum to 1.

    A line carries its peer's own vector (but for its share), and that share of the average to each other member. A
    line too slow for more than the own vector reduces nothing.

    :param bandwidths: of the row's reducers
    :param members: of the row
    """
    if members <= 2 or len(bandwidths) < 2:
        return [line / sum(bandwidths) for line in bandwidths]
    using = list(bandwidths)
    while True:
        time = (members - 2 + sum(line > 0 for line in using)) / sum(using)
        found = [(time * line - 1) / (members - 2) if line > 0 else 0.0 for line in using]
        if all(share >= 0 for share in found):
            return found
        using = [line if share >= 0 else 0.0 for line, share in zip(using, found, strict=True)]
