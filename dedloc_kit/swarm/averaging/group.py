"""The group of a round: how its members find each other, and what becomes of it.

All peers know each other from their progress records, and rank alike whom to follow (`Grouping`); each asks these few
until one accepts. A leader tells its followers who the members are as soon as all that it expects are there.
"""

import asyncio
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from hivemind.utils import get_dht_time
from pydantic import Field, field_validator, model_validator

from dedloc_kit.records import MAX_ROWS, Contribution, Count, Digest, PeerId, Record, RunId
from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.network.identity import opened
from dedloc_kit.swarm.network.service import CLOSE_SECONDS, MAX_RECORD_BYTES, Endpoint, Service, Stream, encode

REQUEST_SECONDS = 3.0
"""For a leader's answer."""
ASK_AGAIN_SECONDS, MAX_WAIT_SECONDS = 0.25, 5.0
"""Until a leader that refused is asked again; one that answers slowly is asked less often."""
MAX_MEMBERS = 2048
MAX_ROW = 256
"""Members that one row's leader brings."""
MAX_GROUP_BYTES = 200 * MAX_MEMBERS


class NoGroup(TimeoutError):
    """There was none in time.

    :ivar leader: whom this peer waited for all the time; empty if it led itself, or found nobody
    """

    def __init__(self, leader: str) -> None:
        super().__init__("no group was found in time")
        self.leader = leader


@dataclass(frozen=True)
class RoundResult:
    """What became of one all-reduce, as this peer saw it."""

    outcome: Literal["complete", "refused", "failed"]
    """`refused`: too few are left to take a global step, so nothing was averaged; all members see the same."""
    id: str = ""
    contributions: dict[str, Contribution] = field(default_factory=dict)
    """Of every member that counts, by peer id; signatures are checked."""
    signed: tuple[bytes, ...] = ()
    """The same as their authors signed them."""
    detail: str = ""
    culprits: frozenset[str] = frozenset()
    """Peers that fell silent, broke off or sent nonsense, whether the round went on without them or not."""
    named: frozenset[str] = frozenset()
    """Peers that did so as other members say."""
    seconds: float = 0.0
    """What the all-reduce took."""
    ended: float = field(default_factory=get_dht_time)
    """When it was over (DHT time)."""
    longest_silence: float = 0.0
    upload_rate: float | None = None
    """Bytes per second at which this peer's gradients came to the reducers."""


@dataclass(frozen=True)
class RowCall:
    """What a peer has to know where peers are divided into rows."""

    division: Division
    signed: bytes
    """That it comes, a `Coming`."""
    able: Mapping[int, tuple[str, ...]]
    """Of each other row some who can be asked who leads it."""
    expected: frozenset[int]
    """The other rows that have to come."""


@dataclass(frozen=True)
class GroupRequest:
    """Which group a peer looks for."""

    step: int
    """The global step that it will take."""
    after: str
    """The round that led to this peer's state; only peers with the same state can meet."""
    leaders: tuple[str, ...]
    """Whom to ask to lead this peer, best first; without any it leads itself, unless it is a client."""
    expected: frozenset[str]
    """The group stands as soon as these others are there."""
    unwelcome: frozenset[str]
    """Peers that this one would not lead."""
    window: float
    """Seconds to wait for missing peers before the group stands without them."""
    bandwidth: float | None = None
    """Of this peer's line, in bytes per second, if it is known."""
    rows: RowCall | None = None
    """None where there is one group."""

    @property
    def patience(self) -> float:
        """Windows differ: whoever waits for a leader has to wait as long as that one does, and as it waits for other
        rows."""
        return (2 if self.rows is None else 3) * self.window + 10.0


class Member(Record):
    """What a member says of itself."""

    peer: PeerId
    bandwidth: Annotated[float, Field(gt=0)] | None
    """None: not known."""
    client_mode: bool
    """Reduces nothing."""
    group_size: Count
    """Of the group that it expects."""


class Coming(Record):
    """What a member signs where peers are divided into rows, so that nobody brings any who do not come."""

    run_id: RunId
    step: Count
    after: Digest
    member: Member


class Group(Record):
    """A group that stands, as its leader tells the others."""

    id: Digest
    members: Annotated[tuple[Member, ...], Field(min_length=2, max_length=MAX_MEMBERS, strict=False)]
    rows: Annotated[tuple[Annotated[int, Field(ge=0, lt=MAX_ROWS)], ...], Field(strict=False)] = ()
    """The row of each member; none where they are one."""

    @field_validator("members")
    @classmethod
    def _each_once(cls, members: tuple[Member, ...]) -> tuple[Member, ...]:
        if len({member.peer for member in members}) < len(members):
            raise ValueError("a member is named twice")
        return members

    @model_validator(mode="after")
    def _each_in_a_row(self) -> "Group":
        if self.rows and (len(self.rows) != len(self.members) or set(self.rows) != set(range(1 + max(self.rows)))):
            raise ValueError("rows: not one for each member, or one without any")
        return self

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(member.peer for member in self.members)

    @property
    def expected_size(self) -> float:
        """The median of what the members expect, so that one of them cannot block the others."""
        return statistics.median(member.group_size for member in self.members)


class Join(Record):
    """A peer wants to follow another one."""

    step: Count
    after: Digest
    member: Member
    signed: Annotated[bytes, Field(max_length=MAX_RECORD_BYTES)] = b""
    """Where peers are divided into rows: the same as a `Coming`."""

    @property
    def name(self) -> str:
        """By which it is expected."""
        return self.member.peer


class Verdict(Record):
    """What a leader answers; whoever is to wait gets another one later."""

    verdict: Literal["wait", "no", "group"]
    leader: PeerId = ""
    """With `no`: whom the asked peer follows itself."""
    group: Group | None = None


class Search:
    """A group that this peer looks for."""

    def __init__(self, request: GroupRequest) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.gathered: asyncio.Future[tuple[Any, ...]] = loop.create_future()
        """What this peer and its followers have said of themselves, if it leads."""
        self.group: asyncio.Future[Group] = loop.create_future()
        self.leader = ""
        self._followers: dict[str, tuple[Any, asyncio.Future[Verdict]]] = {}

    def follows(self, peer: str) -> bool:
        return peer in self._followers

    def admit(self, peer: str, join: Any) -> "asyncio.Future[Verdict]":
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._followers[peer] = join, verdict
        return verdict

    def drop(self, peer: str, told: "asyncio.Future[Verdict]") -> None:
        if self._followers.get(peer, (None, None))[1] is told:
            del self._followers[peer]

    @property
    def complete(self) -> bool:
        """Is everybody there who is expected? Others may have come of whom this peer did not know."""
        expected = self.request.expected
        alone = not expected and self.request.rows is not None  # in its row; there are others in other rows
        return (self.anybody or alone) and expected <= {join.name for join, _ in self._followers.values()}

    @property
    def anybody(self) -> bool:
        return bool(self._followers)

    def gather(self, mine: Any) -> None:
        """It is time to begin with those who have come."""
        if not self.gathered.done():
            self.gathered.set_result((mine, *(join for join, _ in self._followers.values())))

    def tell(self, group: Group) -> None:
        """The group stands, and this peer is in it."""
        self.group.set_result(group)
        self._tell(Verdict(verdict="group", group=group))

    def disband(self, leader: str = "") -> None:
        """Send the followers away, to another leader if there is one."""
        self._tell(Verdict(verdict="no", leader=leader))

    def _tell(self, verdict: Verdict) -> None:
        for _, told in self._followers.values():
            if not told.done():
                told.set_result(verdict)
        self._followers.clear()


def stands(members: Sequence[Member], rows: Mapping[str, int] | None = None) -> Group:
    """A group of these members.

    Members stand in the order of their ids, which no leader decides: so each reduces mostly the same values as in the
    round before. What its averages lost there is made good with the next ones, and its memory for them is a share of
    the vector, not the whole.

    :param rows: of each by peer id, if they are several
    """
    ordered = tuple(sorted(members, key=lambda member: member.peer))
    numbers = tuple(rows[member.peer] for member in ordered) if rows else ()
    return Group(id=secrets.token_hex(20), members=ordered, rows=numbers)


@lru_cache(MAX_MEMBERS)
def _opened(signed: bytes) -> tuple[str, Coming]:
    """A row's leader and the leader of all look at each twice."""
    return opened(Coming, signed)


Form = Callable[[tuple[Any, ...]], Awaitable[Group]]


class GroupService(Service):
    """Finds groups, and leads those who ask this peer to; one group at a time.

    :param me: this peer's id
    :param client_mode: nobody can ask this peer, so that it cannot lead
    """

    name = "group"
    question: ClassVar[type[Record]] = Join
    most_bytes: ClassVar[int] = MAX_RECORD_BYTES
    """Of a question."""

    def __init__(self, me: str, endpoint: Endpoint, *, client_mode: bool) -> None:
        self._me, self._endpoint, self._client_mode = me, endpoint, client_mode
        self._search: Search | None = None
        self._in_vain: set[str] = set()
        """Leaders that this peer has waited for since the last group, and that told of none."""

    async def find(self, request: GroupRequest, form: Form | None = None) -> Group:
        """The group, as soon as it stands; raises NoGroup if there is none in time.

        :param form: makes the group of those who have come to this peer; if none, they are the group
        """
        search = self._search = Search(request)
        asking = asyncio.create_task(self._ask_leaders(search))
        try:
            async with asyncio.timeout(request.patience):
                awaited: set[asyncio.Future[Any]] = {asking, search.gathered, search.group}
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                if asking.done():
                    asking.result()
                if not search.group.done():
                    asking.cancel()
                    joins = search.gathered.result()
                    search.tell(stands([j.member for j in joins]) if form is None else await form(joins))
                self._in_vain.clear()
                return search.group.result()
        except NoGroup:
            raise
        except TimeoutError:
            self._in_vain.add(search.leader)
            raise NoGroup(search.leader) from None
        finally:
            self._search = None
            asking.cancel()
            search.disband()

    @property
    def followed(self) -> str:
        """Whom this peer follows while it looks for a group."""
        return "" if self._search is None else self._search.leader

    def follows(self, leader: str) -> bool:
        """Does this peer wait in a group that this one leads?"""
        return self._search is not None and self._search.leader == leader

    async def _ask_leaders(self, search: Search) -> None:
        """Ask the same few peers until one of them accepts; they may begin to look for their group later than we."""
        window, lonely = search.request.window, False
        due = dict.fromkeys((leader for leader in search.request.leaders if leader not in self._in_vain), 0.0)
        ends = float("inf") if self._client_mode else time.monotonic() + window
        while not search.group.done():
            now = time.monotonic()
            over = now >= ends and (search.anybody or lonely)  # it is time to begin with those who have come
            if over or (search.complete and not self._client_mode):
                search.gather(self._join(search.request))
                return
            if now >= ends:  # perhaps its leader has died, and others follow this peer now
                ends, lonely = now + window, search.request.rows is not None
            leader = next((leader for leader, then in due.items() if then <= now), None)
            if leader is None:
                await asyncio.sleep(min(ends, min(due.values(), default=now + MAX_WAIT_SECONDS)) - now)
                continue
            verdict = await self._ask(leader, search)
            if verdict is not None and verdict.group is not None and not search.group.done():
                search.group.set_result(verdict.group)
            took = time.monotonic() - now
            due[leader] = time.monotonic() + min(MAX_WAIT_SECONDS, max(ASK_AGAIN_SECONDS, 4.0 * took))
            led = "" if verdict is None else verdict.leader
            if led not in self._in_vain and self._believes(leader, led, search.request):
                due[led] = 0.0

    async def _ask(self, leader: str, search: Search) -> Verdict | None:
        """What a leader says in the end; none if it does not answer."""
        try:
            async with self._endpoint.open(leader, self) as stream:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await stream.send(encode(self._join(search.request)))
                    verdict = await stream.receive_record(Verdict)
                if verdict.verdict != "wait":
                    return verdict
                search.leader = leader
                search.disband(leader)
                verdict = await stream.receive_record(Verdict, MAX_GROUP_BYTES)
                if verdict.group is not None and not {self._me, leader} <= set(verdict.group.peers):
                    raise ValueError("the group lacks us or its leader")
                return verdict
        except (OSError, EOFError, ValueError):
            return None
        finally:
            search.leader = ""

    def _join(self, request: GroupRequest) -> Record:
        """What this peer says to join a group."""
        member = Member(
            peer=self._me,
            bandwidth=request.bandwidth,
            client_mode=self._client_mode,
            group_size=1 + len(request.expected),
        )
        signed = b""
        if request.rows is not None:
            signed = request.rows.signed
            member = _opened(signed)[1].member
        return Join(step=request.step, after=request.after, member=member, signed=signed)

    def _believes(self, asked: str, leader: str, request: GroupRequest) -> bool:
        """May it be this one who leads, as the one who was asked says?"""
        return leader in request.expected

    async def serve(self, peer: str, stream: Stream) -> None:
        join: Any = await stream.receive_question(self.question, self.most_bytes)
        search = self._search
        if search is None or not self._accepts(peer, join, search):
            await stream.send(encode(Verdict(verdict="no", leader=self.followed)))
            await stream.closed()
            return
        told = search.admit(peer, join)
        left = asyncio.create_task(stream.closed(search.request.patience))
        try:
            await stream.send(encode(Verdict(verdict="wait")))
            if search.complete:
                search.gather(self._join(search.request))
            awaited: set[asyncio.Future[Any]] = {told, left}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                await stream.send(encode(told.result()))
                await asyncio.wait({left}, timeout=CLOSE_SECONDS)
        finally:
            left.cancel()
            search.drop(peer, told)

    def _accepts(self, peer: str, join: Any, search: Search) -> bool:
        request = search.request
        return (
            not self._client_mode
            and not search.leader
            and not search.group.done()
            and not search.gathered.done()
            and not search.follows(peer)
            and peer not in request.unwelcome
            and (join.step, join.after) == (request.step, request.after)
            and self._is_right(peer, join, request)
        )

    def _is_right(self, peer: str, join: Any, request: GroupRequest) -> bool:
        """Does a peer speak for itself?"""
        if peer != join.member.peer:
            return False
        return request.rows is None or self._comes(join.signed, request) == join.member

    def _comes(self, signed: bytes, request: GroupRequest) -> Member | None:
        """The member that has signed that it comes to this group; none if that is not so."""
        try:
            author, coming = _opened(signed)
        except ValueError:
            return None
        said = coming.run_id, coming.step, coming.after, coming.member.peer
        return coming.member if said == (self._endpoint.run_id, request.step, request.after, author) else None
