"""Which chunk of the flat vector goes from whom to whom in a round. Pure functions, the same at all members.

Members are divided into rows. Within a row each chunk has an owner, which adds up what the row's members send. Of the
owners of a chunk in all rows one is its finisher: it adds up the rows' sums and encodes the average once. The other
owners hand on its very bytes in their rows. One row is a butterfly all-reduce (DeDLOC, section 3.2). Agreement knows
nothing of rows. Members are given by their places in the group.
"""

import hashlib
import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from statistics import fmean, median
from typing import NamedTuple

from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.records.record import PeerId

MAX_ROW = 64
"""Members of a row on average. In smaller rows the death of a reducer costs more, in larger ones streams do."""
FOR_BACKUPS = 24
"""Members and reducers of a group of one row, counted together: from so many on backups are a twentieth of what a
reducer sends, or less."""
Row = int


class Transfer(NamedTuple):
    """A chunk on its way between two members."""

    source: int
    target: int
    chunk: int


@dataclass(frozen=True)
class Assignment:
    """The transfers of a plan while the same reducers live.

    :ivar living: the reducers that live
    :ivar owners: of each row the owner of each chunk; nothing for a row without a living reducer, which does not count
    :ivar finishers: of each chunk the row whose owner finishes it
    """

    plan: "Plan"
    living: frozenset[int]
    owners: tuple[tuple[int, ...], ...]
    finishers: tuple[Row, ...]

    @cached_property
    def owned(self) -> Mapping[int, tuple[int, ...]]:
        """The chunks of each owner."""
        found: dict[int, list[int]] = {}
        for owners in self.owners:
            for chunk, owner in enumerate(owners):
                found.setdefault(owner, []).append(chunk)
        return {owner: tuple(chunks) for owner, chunks in found.items()}

    @cached_property
    def rows(self) -> frozenset[Row]:
        """Rows that count."""
        return frozenset(row for row, owners in enumerate(self.owners) if owners)

    @cached_property
    def makers(self) -> tuple[int, ...]:
        """The finisher of each chunk; with one row its owner."""
        return tuple(self.owners[row][chunk] for chunk, row in enumerate(self.finishers))

    def source(self, member: int, chunk: int) -> int | None:
        """From whom a member gets an average; None if it makes it itself, or its row has no reducer."""
        owners, maker = self.owners[self.plan.rows[member]], self.makers[chunk] if self.finishers else member
        if not owners or maker == member:
            return None
        return owners[chunk] if owners[chunk] != member else maker

    def parts(self, member: int) -> tuple[Transfer, ...]:
        """What a member sends to the owners of its row, in the order in which all send: owners take turns."""
        owners = self.owners[self.plan.rows[member]]
        order = sorted(range(len(owners)), key=lambda chunk: (self._turn[owners[chunk], chunk], chunk))
        return tuple(Transfer(member, owners[chunk], chunk) for chunk in order if owners[chunk] != member)

    def backups(self, owner: int) -> tuple[Transfer, ...]:
        """An owner's own parts of its chunks, to those who own them if it dies; in a small group there are none.

        So it still counts if it dies after all its parts are sent; otherwise all averages would have to be made and
        sent anew without it.
        """
        if len(self.owners) == 1 and len(self.plan.members) + len(self.plan.reducers) < FOR_BACKUPS:
            return ()
        heirs = self.plan.owners_if(self.plan.rows[owner], self.living - {owner})
        return tuple(Transfer(owner, heirs[c], c) for c in self.owned.get(owner, ())) if heirs else ()

    @cached_property
    def _turn(self) -> Mapping[tuple[int, int], int]:
        return {(owner, chunk): turn for owner, chunks in self.owned.items() for turn, chunk in enumerate(chunks)}

    def sums(self, owner: int) -> tuple[Transfer, ...]:
        """The row's sums that an owner sends to the chunks' finishers."""
        mine = self.owned.get(owner, ())
        return tuple(Transfer(owner, self.makers[c], c) for c in mine if self.makers[c] != owner)

    def partners(self, owner: int) -> set[int]:
        """Reducers in other rows with whom an owner exchanges sums and averages."""
        found = {self.makers[chunk] for chunk in self.owned.get(owner, ())}
        for chunk, maker in enumerate(self.makers):
            if maker == owner:
                found |= {owners[chunk] for owners in self.owners if owners}
        return found - {owner}

    def averages(self, owner: int, chunk: int) -> tuple[Transfer, ...]:
        """An average from its finisher to the owners in other rows, and from each owner to the members of its row."""
        row = self.plan.rows[owner]
        others: tuple[int, ...] = ()
        if self.makers[chunk] == owner:
            others = tuple(owners[chunk] for owners in self.owners if owners and owners[chunk] != owner)
        mates = (mate for mate in self.plan.teams[row] if mate != owner)
        return tuple(Transfer(owner, target, chunk) for target in (*others, *mates))


@dataclass(frozen=True)
class Plan:
    """How the members of a group reduce the vector.

    :ivar shares: how much of the vector each member reduces for its row, in any unit; 0 if it does not reduce
    :ivar rows: of each member, counted from 0; one row if empty
    :ivar chunks: begin and end of each; they depend on the model alone
    """

    members: tuple[PeerId, ...]
    layout: FlatLayout
    shares: tuple[float, ...]
    rows: tuple[Row, ...] = ()
    chunks: tuple[tuple[int, int], ...] = field(init=False)
    _known: dict[frozenset[int], Assignment] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", self.layout.grid())
        object.__setattr__(self, "rows", self.rows or (0,) * len(self.members))

    @classmethod
    def of(
        cls, members: Sequence[PeerId], layout: FlatLayout, bandwidths: Sequence[float | None], max_row: int = MAX_ROW
    ) -> "Plan":
        """The plan of a group by its members' lines.

        :param bandwidths: 0 for clients, None if it is not known
        :param max_row: members of a row on average, at most
        """
        usual = fmean([line for line in bandwidths if line] or [1.0])
        lines = [usual if line is None else line for line in bandwidths]
        rows = divide(members, lines, min(row_count(len(members), max_row), max(1, sum(line > 0 for line in lines))))
        found = [0.0] * len(lines)
        for row in set(rows):
            able = [member for member, line in enumerate(lines) if line > 0 and rows[member] == row]
            for member, share in zip(able, shares([lines[m] for m in able], rows.count(row)), strict=True):
                found[member] = share
        return cls(tuple(members), layout, tuple(found), rows)

    @cached_property
    def reducers(self) -> tuple[int, ...]:
        """Members that reduce, if only what a dead one leaves."""
        return tuple(member for member, share in enumerate(self.shares) if share > 0)

    @cached_property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """The members of each row."""
        found: list[list[int]] = [[] for _ in range(max(self.rows) + 1)]
        for member, row in enumerate(self.rows):
            found[row].append(member)
        return tuple(map(tuple, found))

    def inherited(self, member: int) -> int:
        """Chunks that a reducer of a member's row may inherit before others hear of it: as many as one has."""
        reducers = sum(self.shares[mate] > 0 for mate in self.teams[self.rows[member]])
        return len(self.chunks) // max(1, reducers)

    def ranking(self, name: str) -> tuple[int, ...]:
        """Reducers in the order in which they decide: alike for all members, by turns, the slower half last."""
        usual = median(self.shares[reducer] for reducer in self.reducers)

        def rank(reducer: int) -> tuple[bool, bytes]:
            slow = self.shares[reducer] < usual
            return slow, hashlib.sha256(f"{name} {self.members[reducer]}".encode()).digest()

        return tuple(sorted(self.reducers, key=rank))

    @property
    def first(self) -> Assignment:
        """While all reducers live."""
        return self.assign(self.reducers)

    def assign(self, living: Collection[int]) -> Assignment:
        """The transfers if only these reducers live.

        A chunk of a dead owner goes to the next in that chunk's own order who lives: so only transfers from and to the
        dead change, whoever else is dead.
        """
        key = frozenset(self.reducers) & frozenset(living)
        if key not in self._known:
            owners = tuple(self.owners_if(row, key) for row in range(len(self.teams)))
            self._known[key] = Assignment(self, key, owners, self._finishers(owners))
        return self._known[key]

    def owners_if(self, row: Row, living: frozenset[int]) -> tuple[int, ...]:
        """The owner of each chunk in a row if only these reducers live."""
        owners, heirs = self._orders[row]
        if living.isdisjoint(self.teams[row]):
            return ()
        found = []
        for chunk, owner in enumerate(owners):
            order = chain((owner,), islice(heirs, chunk, None), heirs, self.teams[row])
            found.append(next(each for each in order if each in living))
        return tuple(found)

    @cached_property
    def _orders(self) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
        """Of each row the owner of each chunk if all live; and who would get one chunk more after the other."""
        found = []
        for team in self.teams:
            turns, count = self._turns(team), len(self.chunks)
            found.append((tuple(sorted(islice(turns, count))), tuple(islice(turns, count))))
        return tuple(found)

    def _turns(self, team: Sequence[int]) -> Iterator[int]:
        """Chunk by chunk the reducer that has least for its share (d'Hondt)."""
        turns = [(1 / self.shares[member], member, 1) for member in team if self.shares[member] > 0]
        heapq.heapify(turns)
        while turns:
            _, member, count = turns[0]
            yield member
            heapq.heapreplace(turns, ((count + 1) / self.shares[member], member, count + 1))

    def _finishers(self, owners: Sequence[Sequence[int]]) -> tuple[Row, ...]:
        """Rows take turns; a row without an owner is passed over."""
        count = len(owners)
        if not any(owners):
            return ()
        rows = [next(row for k in range(count) if owners[row := (turn + k) % count]) for turn in range(count)]
        return tuple(rows[chunk % count] for chunk in range(len(self.chunks)))


def row_count(members: int, max_row: int = MAX_ROW) -> int:
    return max(1, math.ceil(members / max_row))


def divide(members: Sequence[PeerId], bandwidths: Sequence[float], rows: int) -> tuple[Row, ...]:
    """The row of each member, so that all rows have like bandwidth for their members.

    :param bandwidths: 0 for those that do not reduce
    """
    order = sorted(range(len(members)), key=lambda member: (-bandwidths[member], members[member]))
    turns = chain.from_iterable(chain(range(rows), reversed(range(rows))) for _ in order)
    row_of = dict(zip(order, turns, strict=False))
    return tuple(row_of[member] for member in range(len(members)))


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
