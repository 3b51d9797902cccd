"""How the rows of a round meet: the leader of each brings its members, as a member brings itself to its leader.

Rows rank alike whom to follow. A row's leader asks some of the first few rows; who does not lead says whom it follows.
The one that leads all makes one group of the rows that have come, tells their leaders, and these tell their members: so
nobody sends a list of all to all.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Annotated, Any

from pydantic import Field

from dedloc_kit.records.progress import MAX_ROWS
from dedloc_kit.records.record import Count, Digest, Record
from dedloc_kit.swarm.averaging.matchmaking.group import MAX_ROW, Group, GroupRequest, Join, Member, stands
from dedloc_kit.swarm.averaging.matchmaking.grouping import MAX_LEADERS
from dedloc_kit.swarm.averaging.matchmaking.search import GroupService
from dedloc_kit.swarm.network.identity import MAX_RECORD_BYTES
from dedloc_kit.swarm.network.service import Endpoint

MIN_REDUCERS = 2
"""In a row: with only one of them its death would cost the whole row."""
UNEVEN = 1.1
"""So much more than another row may one have to do for its bandwidth."""
LARGEST = 1.5
"""So many times the average one may a row become, whatever bandwidth its members claim."""
MARGIN = 5.0
"""Seconds."""
MAX_PARTY_BYTES = 1500 * MAX_ROW


class RowJoin(Record):
    """A row's leader wants to follow another one, with its row."""

    step: Count
    after: Digest
    row: Annotated[int, Field(ge=0, lt=MAX_ROWS)]
    party: Annotated[
        tuple[Annotated[bytes, Field(max_length=MAX_RECORD_BYTES)], ...],
        Field(min_length=1, max_length=MAX_ROW, strict=False),
    ]
    """What each of its members has signed, a `Coming`; the leader is one of them."""

    @property
    def name(self) -> str:
        """By which it is expected."""
        return str(self.row)


@dataclass(frozen=True)
class RowRequest(GroupRequest):
    """The same of a row's leader, for its row: whom it expects are numbers of rows."""

    limit: float = 0.0
    party: tuple[bytes, ...] = ()

    @property
    def patience(self) -> float:
        return self.limit


def ranked(after: str, rows: Sequence[int]) -> list[int]:
    """Which row's leader leads the round after this one, best first; by turns, and alike for all."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"{after} row {row}".encode()).digest())


class RowService(GroupService):
    """Finds the other rows for a peer that leads its own, and leads those whose leaders ask this peer to.

    :param followed: whom this peer follows in its row; empty if it leads or does not look for a group
    """

    name = "rows"
    question = RowJoin
    most_bytes = MAX_PARTY_BYTES

    def __init__(self, me: str, endpoint: Endpoint, *, client_mode: bool, followed: Callable[[], str]) -> None:
        super().__init__(me, endpoint, client_mode=client_mode)
        self._followed = followed

    async def meet(self, request: GroupRequest, joins: tuple[Join, ...]) -> Group:
        """The group of all rows, for one that has gathered in its own; raises TimeoutError if there is none in time.

        :param joins: what the members of this row have said, this peer among them
        """
        call = request.rows
        assert call is not None
        mine = call.division.row_of(self._me)
        order = ranked(request.after, [*call.able, mine])
        before = order[: order.index(mine)][:MAX_LEADERS]
        rows = RowRequest(
            step=request.step,
            after=request.after,
            leaders=tuple(peer for row in before for peer in call.able[row]),
            expected=frozenset(map(str, call.expected)),
            unwelcome=request.unwelcome,
            # The leader of all may wait for its own row for one window, and for the other rows for another one.
            window=request.window * (2 if before else 1),
            rows=call,
            limit=2 * request.window + MARGIN,  # before this row's members think that it is their leader who is slow
            party=tuple(join.signed for join in joins),
        )
        return await self.find(rows, self._form)

    async def _form(self, request: GroupRequest, joins: tuple[RowJoin, ...]) -> Group:
        """One group of the rows that have come; who is brought twice counts for who brought it first."""
        members: dict[str, Member] = {}
        rows: dict[str, int] = {}
        for number, join in enumerate(joins):
            for member in self._party(join, request):
                if member.peer not in members:
                    members[member.peer], rows[member.peer] = member, number
        return stands(tuple(members.values()), evened(members, rows))

    @property
    def followed(self) -> str:
        return super().followed or self._followed()

    def _join(self, request: GroupRequest) -> Record:
        assert isinstance(request, RowRequest)
        assert request.rows is not None
        row = request.rows.division.row_of(self._me)
        return RowJoin(step=request.step, after=request.after, row=row, party=request.party)

    def _believes(self, asked: str, leader: str, request: GroupRequest) -> bool:
        """A row is led by one of its own."""
        assert request.rows is not None
        division = request.rows.division
        return leader not in ("", self._me) and division.row_of(leader) == division.row_of(asked)

    def _is_right(self, peer: str, join: Any, request: GroupRequest) -> bool:
        """Is it a row that one of its members brings, and does each of them come?"""
        assert request.rows is not None
        party = self._party(join, request)
        peers = {member.peer for member in party}
        led = peer in peers and request.rows.division.row_of(peer) == join.row
        return led and len(peers) == len(join.party)

    def _party(self, join: RowJoin, request: GroupRequest) -> list[Member]:
        """Those of a row who come."""
        party = (self._comes(signed, request) for signed in join.party)
        return [member for member in party if member is not None]


def evened(members: Mapping[str, Member], rows: Mapping[str, int]) -> dict[str, int]:
    """The row of each member, after rows that have hardly anybody who reduces have joined others, and clients have left
    those that have more to do for their bandwidth than others: a round takes as long as its slowest row.

    :param rows: in which it has come
    """
    reducers = Counter(number for peer, number in rows.items() if not members[peer].client_mode)
    sizes, joined = Counter(rows.values()), dict[int, int]()
    while len(sizes) > 1:
        weakest, following, *_ = sorted(sizes, key=lambda row: (reducers[row], sizes[row]))
        if reducers[weakest] >= max(MIN_REDUCERS, median(reducers[row] for row in sizes) / 2):
            break
        joined[weakest] = following
        sizes[following] += sizes.pop(weakest)
        reducers[following] += reducers.pop(weakest, 0)

    def row_of(number: int) -> int:
        return row_of(joined[number]) if number in joined else number

    numbers = {row: number for number, row in enumerate(sorted(sizes))}
    return {} if len(sizes) == 1 else _spread(members, {peer: numbers[row_of(row)] for peer, row in rows.items()})


def _spread(members: Mapping[str, Member], rows: dict[str, int]) -> dict[str, int]:
    """Mostly the same clients move each time, for those that do have other reducers to find."""
    usual = fmean([member.bandwidth for member in members.values() if member.bandwidth] or [1.0])
    sizes, lines, clients = Counter(rows.values()), defaultdict[int, float](float), defaultdict[int, list[str]](list)
    for peer in sorted(members):
        if members[peer].client_mode:
            clients[rows[peer]].append(peer)
        else:
            lines[rows[peer]] += members[peer].bandwidth or usual
    largest = LARGEST * len(rows) / len(sizes)
    while True:
        slowest = max((row for row in sizes if clients[row]), key=lambda row: sizes[row] / lines[row], default=None)
        room = [row for row in sizes if sizes[row] + 1 <= largest]
        fastest = min(room, key=lambda row: (sizes[row] + 1) / lines[row], default=None)
        if slowest is None or fastest is None:
            return rows
        if sizes[slowest] / lines[slowest] <= UNEVEN * (sizes[fastest] + 1) / lines[fastest]:
            return rows
        rows[clients[slowest].pop()] = fastest
        sizes[slowest] -= 1
        sizes[fastest] += 1


class Matchmaking:
    """Finds the group of a round, in one row or in several."""

    def __init__(self, groups: GroupService, rows: RowService) -> None:
        self._groups, self._rows = groups, rows

    async def find(self, request: GroupRequest) -> Group:
        """See `GroupService.find`."""
        return await self._groups.find(request, None if request.rows is None else self._rows.meet)

    def widen(self, request: GroupRequest) -> None:
        """See `GroupService.widen`; a row that has gathered stays as it is."""
        self._groups.widen(request)
