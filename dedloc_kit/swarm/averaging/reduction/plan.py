"""Who reduces which values of the flat vector."""

import hashlib
import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from statistics import median

from hivemind.averaging.load_balancing import load_balance_peers

from dedloc_kit.learning.train import flat
from dedloc_kit.learning.train.flat import FlatLayout

PIECES = 4
"""Chunks for each reducer of a row, and for each row, at least: the finer they are, the more evenly they are dealt."""


@dataclass(frozen=True)
class Deal:
    """Who does what as long as the same reducers live.

    :ivar owners: of each row, who reduces each chunk for its members; nothing for a row of which no reducer lives
    :ivar finishers: of each chunk, which of its owners averages the rows
    """

    owners: tuple[tuple[int, ...], ...]
    finishers: tuple[int, ...]

    def source(self, number: int, row: int, me: int) -> int:
        """From whom a member of this row gets the average of a chunk; -1 if its row has nobody left."""
        if not self.owners[row]:
            return -1
        owner = self.owners[row][number]
        return self.finishers[number] if owner == me else owner


@dataclass(frozen=True)
class Plan:
    """The members in rows, and the flat vector in chunks, which are the same in all rows.

    Within a row each chunk has an owner, who averages what the row's members send. Of the owners of a chunk in all rows
    one, its finisher, averages these.
    """

    members: tuple[str, ...]
    layout: FlatLayout
    shares: tuple[int, ...]
    """How many values each member reduces for its row; 0 for clients."""
    rows: tuple[int, ...] = ()
    """Of each member, counted from 0; one row if there are none."""
    chunks: tuple[tuple[int, int], ...] = field(init=False)
    """Begin and end of each."""
    teams: tuple[tuple[int, ...], ...] = field(init=False)
    """The members of each row."""
    first: Deal = field(init=False)
    """If all live."""
    _deals: dict[frozenset[int], Deal] = field(init=False, repr=False, compare=False, default_factory=dict)
    """It is asked for with each average."""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "rows", self.rows or (0,) * len(self.members))
        teams = tuple(tuple(m for m, r in enumerate(self.rows) if r == row) for row in range(max(self.rows) + 1))
        set_(self, "teams", teams)
        if len(teams) == 1:
            pieces = self.layout.chunks(self.shares)
            set_(self, "chunks", tuple(chunk for peer in pieces for chunk in peer))
            owners = [tuple(p for p, peer in enumerate(pieces) for _ in peer)]
        else:
            most = max(len(teams), *(sum(self.shares[m] > 0 for m in team) for team in teams))
            length = min(flat.CHUNK, max(1, -(-self.layout.size // (PIECES * most))))
            set_(self, "chunks", tuple(self.layout.pieces(0, self.layout.size, length)))
            owners = [self._dealt_by_shares(team) for team in teams]
        set_(self, "first", self._with_finishers(owners))

    @property
    def one_row(self) -> bool:
        return len(self.teams) == 1

    @cached_property
    def reducers(self) -> tuple[int, ...]:
        return tuple(sorted({owner for row in self.first.owners for owner in row}))

    @cached_property
    def row_reducers(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(set(row))) for row in self.first.owners)

    def ranking(self, group: str) -> tuple[int, ...]:
        """Who leads the round, best first: all members rank alike, and no two rounds need be led by the same.

        Of each row the half with the smaller shares comes last: who leads, or is the head of a row, has much to tell.
        """
        usual = [median(self.shares[r] for r in row) if row else 0.0 for row in self.row_reducers]

        def rank(reducer: int) -> tuple[bool, bytes]:
            slow = self.shares[reducer] < usual[self.rows[reducer]]
            return slow, hashlib.sha256(f"{group} {self.members[reducer]}".encode()).digest()

        return tuple(sorted(self.reducers, key=rank))

    def deal(self, living: Collection[int]) -> Deal:
        """Who does what if only these reducers live.

        The chunks of one that is gone go to those in its row that have least to do for their shares, and if these are
        gone as well to the next: so they stay there whoever else dies, and values are sent anew as seldom as can be.
        Likewise with finishers, and rows.
        """
        key = frozenset(living)
        if key not in self._deals:
            self._deals[key] = self._with_finishers([self._owners_if(row, key) for row in range(len(self.teams))])
        return self._deals[key]

    def _owners_if(self, row: int, living: frozenset[int]) -> tuple[int, ...]:
        reducers, first = self.row_reducers[row], self.first.owners[row]
        if living.issuperset(reducers):
            return first
        if living.isdisjoint(reducers):
            return ()
        heirs, dealt, owners = self._heirs[row], Counter[int](), []
        for owner in first:
            if owner not in living:
                order = chain(islice(heirs, dealt[owner], None), heirs, reducers)
                dealt[owner] += 1
                owner = next(reducer for reducer in order if reducer in living)
            owners.append(owner)
        return tuple(owners)

    @cached_property
    def _heirs(self) -> list[tuple[int, ...]]:
        """Of each row, who would get one chunk more after the other."""
        count = len(self.chunks)
        return [
            tuple(islice(self._turns(team), count, 2 * count)) if owners else ()
            for team, owners in zip(self.teams, self.first.owners, strict=True)
        ]

    def _dealt_by_shares(self, team: Sequence[int]) -> tuple[int, ...]:
        shares = sum(self.shares[member] for member in team)
        if not shares:
            return ()
        if shares != self.layout.size:
            raise ValueError(f"the shares of a row are {shares} values, the vector has {self.layout.size}")
        return tuple(sorted(islice(self._turns(team), len(self.chunks))))

    def _turns(self, team: Sequence[int]) -> Iterator[int]:
        """Who gets one chunk after the other, so that nobody ever has more for its share than need be (d'Hondt)."""
        turns = [(1 / self.shares[member], member, 1) for member in team if self.shares[member]]
        heapq.heapify(turns)
        while True:
            _, member, chunks = turns[0]
            yield member
            heapq.heapreplace(turns, ((chunks + 1) / self.shares[member], member, chunks + 1))

    def _with_finishers(self, owners: Sequence[tuple[int, ...]]) -> Deal:
        count = len(owners)
        rows = [[(number + place) % count for place in range(count)] for number in range(count)]
        there = [next(row for row in order if owners[row]) for order in rows]  # in place of each row
        finishers = tuple(owners[there[number % count]][number] for number in range(len(self.chunks)))
        return Deal(tuple(owners), finishers)


def balanced(size: int, bandwidths: Sequence[float | None], rows: Sequence[int] = ()) -> tuple[int, ...]:
    """How many values each member reduces for its row, so that no line is the last; takes a while for hundreds.

    :param bandwidths: 0 for clients, None if it is not known
    """
    rows, shares = rows or [0] * len(bandwidths), [0] * len(bandwidths)
    for row in set(rows):
        team = [member for member, of in enumerate(rows) if of == row]
        lines = [bandwidths[member] for member in team]
        if any(line is None or line > 0 for line in lines):
            for member, share in zip(team, load_balance_peers(size, lines, 0), strict=True):
                shares[member] = share
    return tuple(shares)
