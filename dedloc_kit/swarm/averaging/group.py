"""The group of a round: how its members find each other, and what becomes of it.

All peers know each other from their progress records, and rank alike whom to follow (`Grouping`); each asks these few
until one accepts. A leader tells its followers who the members are as soon as all that it expects are there, but not
long before the batch is full: until then somebody may come who is still getting to the state of the others.

Records come to some sooner than to others. As long as these do not know the same peers, several may lead at once, and
each waits for those who wait with another one: so what comes to be known during the search changes whom it is for.
"""

import asyncio
import secrets
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from hivemind.utils import get_dht_time
from pydantic import Field, field_validator

from dedloc_kit.records import Absence, Contribution, Count, Digest, PeerId, Record
from dedloc_kit.swarm.network.service import CLOSE_SECONDS, Endpoint, Service, Stream, encode

REQUEST_SECONDS = 3.0
"""For a leader's answer."""
ASK_AGAIN_SECONDS, MAX_WAIT_SECONDS = 0.25, 5.0
"""Until a leader that refused is asked again; one that answers slowly is asked less often."""
MAX_MEMBERS = 512
MAX_GROUP_BYTES = 200 * MAX_MEMBERS


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
    absent: dict[str, Absence] = field(default_factory=dict)
    """Members of the group that do not count, and why, as this peer saw it itself."""
    seconds: float = 0.0
    """What the all-reduce took."""
    ended: float = field(default_factory=get_dht_time)
    """When it was over (DHT time)."""
    longest_silence: float = 0.0
    upload_rate: float | None = None
    """Bytes per second at which this peer's gradients came to the reducers."""


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
    open_for: float = 0.0
    """Seconds in which it does not stand though all are there, for somebody may still come."""
    bandwidth: float | None = None
    """Of this peer's line, in bytes per second, if it is known."""

    @property
    def patience(self) -> float:
        """Windows differ: whoever waits for a leader has to wait as long as that one does."""
        return 2 * self.window + 10.0


class Member(Record):
    """What a member says of itself."""

    peer: PeerId
    bandwidth: Annotated[float, Field(gt=0)] | None
    """None: not known."""
    client_mode: bool
    """Reduces nothing."""
    group_size: Count
    """Of the group that it expects."""


class Group(Record):
    """A group that stands, as its leader tells the others."""

    id: Digest
    members: Annotated[tuple[Member, ...], Field(min_length=2, max_length=MAX_MEMBERS, strict=False)]

    @field_validator("members")
    @classmethod
    def _each_once_and_one_reduces(cls, members: tuple[Member, ...]) -> tuple[Member, ...]:
        if len({member.peer for member in members}) < len(members):
            raise ValueError("a member is named twice")
        if all(member.client_mode for member in members):
            raise ValueError("there is nobody among the members who reduces")
        return members

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


class Verdict(Record):
    """What a leader answers; whoever is to wait gets another one later."""

    verdict: Literal["wait", "no", "group"]
    leader: PeerId = ""
    """With `no`: whom the asked peer follows itself."""
    group: Group | None = None


class _Search:
    """A group that this peer looks for."""

    def __init__(self, request: GroupRequest) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.group: asyncio.Future[Group] = loop.create_future()
        self.leader = ""
        self.widened = asyncio.Event()
        self.closing: asyncio.TimerHandle | None = None
        """Until when the group stays open though all are there."""
        self._followers: dict[str, tuple[Member, asyncio.Future[Verdict]]] = {}

    def follows(self, peer: str) -> bool:
        return peer in self._followers

    def admit(self, member: Member) -> "asyncio.Future[Verdict]":
        verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._followers[member.peer] = member, verdict
        return verdict

    def drop(self, peer: str, told: "asyncio.Future[Verdict]") -> None:
        if self._followers.get(peer, (None, None))[1] is told:
            del self._followers[peer]

    @property
    def complete(self) -> bool:
        """Is everybody there who is expected? Others may have come of whom this peer did not know."""
        return self.closing is None and bool(self._followers) and self.request.expected <= self._followers.keys()

    @property
    def anybody(self) -> bool:
        return bool(self._followers)

    def assemble(self, me: Member) -> None:
        """Members stand in the order of their ids, which no leader decides: so each reduces mostly the same values as
        in the round before. What its averages lost there is made good with the next ones, and its memory for them is a
        share of the vector, not the whole."""
        members = sorted([me, *(member for member, _ in self._followers.values())], key=lambda member: member.peer)
        group = Group(id=secrets.token_hex(20), members=tuple(members))
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


class GroupService(Service):
    """Finds groups, and leads those who ask this peer to; one group at a time.

    :param me: this peer's id
    :param client_mode: nobody can ask this peer, so that it cannot lead
    """

    name = "group"

    def __init__(self, me: str, endpoint: Endpoint, *, client_mode: bool) -> None:
        self._me, self._endpoint, self._client_mode = me, endpoint, client_mode
        self._search: _Search | None = None

    async def find(self, request: GroupRequest) -> Group:
        """The group, as soon as it stands; raises TimeoutError if there is none in time."""
        search = self._search = _Search(request)
        self._keep_open(search)
        asking = asyncio.create_task(self._ask_leaders(search))
        try:
            awaited: set[asyncio.Future[Any]] = {asking, search.group}
            await asyncio.wait(awaited, timeout=request.patience, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
            if not search.group.done():
                raise TimeoutError("no group was found in time")
            return search.group.result()
        finally:
            self._search = None
            asking.cancel()
            search.disband()

    def widen(self, request: GroupRequest) -> None:
        """Look also for those who have come since the search began, and follow them if they lead; stay open as it says.

        :param request: of the same step and state
        """
        search = self._search
        if search is not None and (request.step, request.after) == (search.request.step, search.request.after):
            search.request = request
            search.widened.set()
            self._keep_open(search)

    def _keep_open(self, search: _Search) -> None:
        """As long as the request says."""
        if search.closing is not None:
            search.closing.cancel()
        search.closing = asyncio.get_running_loop().call_later(search.request.open_for, self._close, search)

    def _close(self, search: _Search) -> None:
        search.closing = None
        self._stand_if_complete(search)

    def _stand_if_complete(self, search: _Search) -> None:
        if search.complete and not search.group.done():
            search.assemble(self._as_member(search.request))

    def follows(self, leader: str) -> bool:
        """Does this peer wait in a group that this one leads?"""
        return self._search is not None and self._search.leader == leader

    async def _ask_leaders(self, search: _Search) -> None:
        """Ask the same few peers until one of them accepts; they may begin to look for their group later than we."""
        window = search.request.window
        due: dict[str, float] = {}
        ends = float("inf") if self._client_mode else time.monotonic() + window
        while not search.group.done():
            now = time.monotonic()
            if now >= ends:
                if search.anybody:  # it is time to begin with those who have come
                    search.assemble(self._as_member(search.request))
                    return
                ends = now + window
            search.widened.clear()
            due = {leader: due.get(leader, 0.0) for leader in (*search.request.leaders, *due)}
            leader = next((leader for leader, then in due.items() if then <= now), None)
            if leader is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(ends, min(due.values(), default=now + MAX_WAIT_SECONDS)) - now):
                        await search.widened.wait()
                continue
            verdict, took = await self._join(leader, search)
            if verdict is not None and verdict.group is not None and not search.group.done():
                search.group.set_result(verdict.group)
            due[leader] = time.monotonic() + min(MAX_WAIT_SECONDS, max(ASK_AGAIN_SECONDS, 4.0 * took))
            if verdict is not None and verdict.leader in search.request.expected:
                due[verdict.leader] = 0.0

    async def _join(self, leader: str, search: _Search) -> tuple[Verdict | None, float]:
        """What a leader says in the end (none if it does not answer), and the seconds until it first said anything."""
        request, asked = search.request, time.monotonic()
        join = Join(step=request.step, after=request.after, member=self._as_member(request))
        took: float | None = None
        try:
            async with self._endpoint.open(leader, GroupService) as stream:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await stream.send(encode(join))
                    verdict = await stream.receive_record(Verdict)
                took = time.monotonic() - asked
                if verdict.verdict == "wait":
                    search.leader = leader
                    search.disband(leader)
                    verdict = await stream.receive_record(Verdict, MAX_GROUP_BYTES)
                    if verdict.group is not None and not {self._me, leader} <= set(verdict.group.peers):
                        raise ValueError("the group lacks us or its leader")
                return verdict, took
        except (OSError, EOFError, ValueError):
            return None, time.monotonic() - asked if took is None else took
        finally:
            search.leader = ""

    def _as_member(self, request: GroupRequest) -> Member:
        return Member(
            peer=self._me,
            bandwidth=request.bandwidth,
            client_mode=self._client_mode,
            group_size=1 + len(request.expected),
        )

    async def serve(self, peer: str, stream: Stream) -> None:
        join = await stream.receive_question(Join)
        search = self._search
        if search is None or not self._accepts(peer, join, search):
            await stream.send(encode(Verdict(verdict="no", leader=search.leader if search else "")))
            await stream.closed()
            return
        told = search.admit(join.member)
        left = asyncio.create_task(stream.closed(search.request.patience))
        try:
            await stream.send(encode(Verdict(verdict="wait")))
            self._stand_if_complete(search)
            awaited: set[asyncio.Future[Any]] = {told, left}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                await stream.send(encode(told.result()))
                await asyncio.wait({left}, timeout=CLOSE_SECONDS)
        finally:
            left.cancel()
            search.drop(peer, told)

    def _accepts(self, peer: str, join: Join, search: _Search) -> bool:
        request = search.request
        return (
            not self._client_mode
            and not search.leader
            and not search.group.done()
            and not search.follows(peer)
            and peer == join.member.peer
            and peer not in request.unwelcome
            and (join.step, join.after) == (request.step, request.after)
        )
