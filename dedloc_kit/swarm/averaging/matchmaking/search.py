"""How the members of a group find each other.

All peers know each other from their progress records, and rank alike whom to follow (`Grouping`); each asks these few
until one accepts. A leader tells its followers who the members are as soon as all that it expects are there, but not
long before the batch is full: until then somebody may come who is still getting to the state of the others.

Records come to some sooner than to others. As long as these do not know the same peers, several may lead at once, and
each waits for those who wait with another one: so what comes to be known during the search changes whom it is for.
"""

import asyncio
import time
from contextlib import suppress
from typing import Any, ClassVar

from dedloc_kit.records.record import Record
from dedloc_kit.swarm.averaging.matchmaking.group import (
    MAX_GROUP_BYTES,
    Group,
    GroupRequest,
    Join,
    Member,
    Verdict,
    stands,
)
from dedloc_kit.swarm.network.service import CLOSE_SECONDS, MAX_RECORD_BYTES, Endpoint, Service, Stream, encode

REQUEST_SECONDS = 3.0
"""For a leader's answer."""
ASK_AGAIN_SECONDS, MAX_WAIT_SECONDS = 0.25, 5.0
"""Until a leader that refused is asked again; one that answers slowly is asked less often."""


class NoGroup(TimeoutError):
    """There was none in time.

    :ivar leader: whom this peer waited for all the time; empty if it led itself, or found nobody
    """

    def __init__(self, leader: str) -> None:
        super().__init__("no group was found in time")
        self.leader = leader


class Search:
    """A group that this peer looks for."""

    def __init__(self, request: GroupRequest) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.gathered: asyncio.Future[tuple[Any, ...]] = loop.create_future()
        """What this peer and its followers have said of themselves, if it leads."""
        self.group: asyncio.Future[Group] = loop.create_future()
        self.leader = ""
        self.widened = asyncio.Event()
        self.closing: asyncio.TimerHandle | None = None
        """Until when the group stays open though all are there."""
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
    def under_way(self) -> bool:
        """Is it still open who belongs to it?"""
        return not self.gathered.done() and not self.group.done()

    @property
    def complete(self) -> bool:
        """Is everybody there who is expected? Others may have come of whom this peer did not know."""
        if self.closing is not None or self.leader:
            return False
        return self.anybody and self.request.expected <= self._followers.keys()

    @property
    def anybody(self) -> bool:
        return bool(self._followers)

    def gather(self, mine: Any) -> None:
        """It is time to begin with those who have come."""
        self.gathered.set_result((mine, *(join for join, _ in self._followers.values())))

    def tell(self, group: Group) -> None:
        """The group stands, and this peer is in it."""
        self.group.set_result(group)
        self._tell(Verdict(verdict="group", group=group))

    def disband(self, leader: str = "") -> None:
        """Send the followers away, to another leader if there is one."""
        self._tell(Verdict(verdict="no", leader=leader))

    def end(self) -> None:
        if self.closing is not None:
            self.closing.cancel()
        self.disband()

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
    question: ClassVar[type[Record]] = Join
    most_bytes: ClassVar[int] = MAX_RECORD_BYTES
    """Of a question."""

    def __init__(self, me: str, endpoint: Endpoint, *, client_mode: bool) -> None:
        self._me, self._endpoint, self._client_mode = me, endpoint, client_mode
        self._search: Search | None = None
        self._in_vain: set[str] = set()
        """Leaders that this peer has waited for, and that told of no group: others are asked first, for a window."""

    async def find(self, request: GroupRequest) -> Group:
        """The group, as soon as it stands; raises NoGroup if there is none in time."""
        search = self._search = Search(request)
        self._keep_open(search)
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
                    search.tell(stands([join.member for join in joins]))
                self._in_vain.clear()
                return search.group.result()
        except NoGroup:
            raise
        except TimeoutError:
            self._in_vain |= {search.leader} - {""}
            raise NoGroup(search.leader) from None
        finally:
            self._search = None
            asking.cancel()
            search.end()

    def widen(self, request: GroupRequest) -> None:
        """Look also for those who have come since the search began, and follow them if they lead; stay open as it says.

        :param request: of the same step and state
        """
        search = self._search
        same = search is not None and (request.step, request.after) == (search.request.step, search.request.after)
        if search is not None and same and search.under_way:
            search.request = request
            search.widened.set()
            self._keep_open(search)

    def _keep_open(self, search: Search) -> None:
        """As long as the request says."""
        if search.closing is not None:
            search.closing.cancel()
        search.closing = asyncio.get_running_loop().call_later(search.request.open_for, self._close, search)

    def _close(self, search: Search) -> None:
        search.closing = None
        self._gather_if_complete(search)

    def _gather_if_complete(self, search: Search) -> None:
        if search.complete and search.under_way and not self._client_mode:
            search.gather(self._join(search.request))

    @property
    def followed(self) -> str:
        """Whom this peer follows while it looks for a group."""
        return "" if self._search is None else self._search.leader

    def follows(self, leader: str) -> bool:
        """Does this peer wait in a group that this one leads?"""
        return self._search is not None and self._search.leader == leader

    async def _ask_leaders(self, search: Search) -> None:
        """Ask the same few peers until one of them accepts; they may begin to look for their group later than we."""
        window = search.request.window
        due: dict[str, float] = {}
        ends = time.monotonic() + window
        while search.under_way:
            now = time.monotonic()
            if now >= ends:
                if search.anybody:  # it is time to begin with those who have come
                    search.gather(self._join(search.request))
                    return
                # Perhaps its leader has died, and others follow this peer now; or one was only slow, and waits for it.
                ends = now + window
                self._in_vain.clear()
            search.widened.clear()
            known = dict.fromkeys((*search.request.leaders, *due))
            due = {leader: due.get(leader, 0.0) for leader in known if leader not in self._in_vain}
            leader = next((leader for leader, then in due.items() if then <= now), None)
            if leader is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(ends, min(due.values(), default=now + MAX_WAIT_SECONDS)) - now):
                        await search.widened.wait()
                continue
            verdict, took = await self._ask(leader, search)
            if verdict is not None and verdict.group is not None and not search.group.done():
                search.group.set_result(verdict.group)
            due[leader] = time.monotonic() + min(MAX_WAIT_SECONDS, max(ASK_AGAIN_SECONDS, 4.0 * took))
            if verdict is not None and self._believes(leader, verdict.leader, search.request):
                due[verdict.leader] = 0.0
            self._gather_if_complete(search)

    async def _ask(self, leader: str, search: Search) -> tuple[Verdict | None, float]:
        """What a leader says in the end (none if it does not answer), and the seconds until it first said anything."""
        asked = time.monotonic()
        took: float | None = None
        try:
            async with self._endpoint.open(leader, self) as stream:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await stream.send(encode(self._join(search.request)))
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

    def _join(self, request: GroupRequest) -> Record:
        """What this peer says to join a group."""
        member = Member(peer=self._me, bandwidth=request.bandwidth, client_mode=self._client_mode)
        return Join(step=request.step, after=request.after, member=member)

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
            self._gather_if_complete(search)
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
            and search.under_way
            and not search.follows(peer)
            and peer not in request.unwelcome
            and (join.step, join.after) == (request.step, request.after)
            and peer == join.member.peer
        )
