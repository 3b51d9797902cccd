"""The streams of one member to the others in a round: opened, served, read, and given up when they fall silent."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.network.service import CLOSE_SECONDS, Stream

OpenStream = Callable[[str], AbstractAsyncContextManager[Stream]]
"""To another member; its first message, this peer's introduction, is sent."""
MAX_CHUNK_BYTES = 4 * CHUNK + 1024
LINGER = 6
"""Patiences in which a member may go on after the step was taken here."""


@dataclass(frozen=True)
class Patience:
    """Seconds of silence after which a member counts as gone. :ivar start: until it has begun"""

    usual: float
    start: float


class Listener(Protocol):
    """The round, as its streams see it. Members are given by place."""

    def opened(self, member: int, link: Link) -> None:
        """A stream to a reducer stands."""

    def closed(self, member: int) -> None:
        """A stream to a reducer stands no more, whoever closed it."""

    def heard(self, member: int, link: Link, kind: Kind, content: bytes) -> None:
        """Raises ValueError for what a member must not say."""

    def ended(self, member: int, error: Exception, *, up: bool) -> None:
        """A stream is gone.

        :param up: it was one that this peer opened, or tried to
        """


class Streams:
    """
    :ivar up: to members that this peer opened a stream to
    :ivar down: from members that opened one to this peer
    :ivar over: members that said that the step is decided
    """

    def __init__(self, plan: Plan, me: int, patience: Patience, open_stream: OpenStream, listener: Listener) -> None:
        self._plan, self._me, self._patience, self._open_stream = plan, me, patience, open_stream
        self._listener = listener
        self.up: dict[int, Link] = {}
        self.down: dict[int, Link] = {}
        self.over: set[int] = set()
        self._exchanges: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, list[bytes]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._limit = MAX_CHUNK_BYTES + 8 * wire.ENTRY_BYTES + wire.ENTRY_BYTES * len(plan.members)

    def connect(self, member: int) -> None:
        """Have a stream to this member, if there can be one."""
        if member not in self._exchanges and member != self._me:
            self._exchanges[member] = asyncio.create_task(self._exchange(member))

    def to(self, member: int) -> bool:
        """Whether there is a stream to a member."""
        return member in self.up or member in self.down

    def post(self, member: int, message: bytes) -> bool:
        """Tell a member something, as soon as there is a stream if one is being opened; returns whether there is one.

        On the member's own stream if there is one: what is under way on a stream is lost when its opener closes it, and
        this peer may be done next.
        """
        if (link := self.down.get(member) or self.up.get(member)) is not None:
            link.post(message)
        elif member in self._exchanges and not self._exchanges[member].done():
            self._waiting.setdefault(member, []).append(message)
        else:
            return False
        return True

    def ask(self, member: int, message: bytes) -> bool:
        """Ask a member something; returns whether there is a stream to it.

        On this peer's own stream if there is one: it stays open until the answer is here.
        """
        link = self.up.get(member) or self.down.get(member)
        if link is not None:
            link.post(message)
        return link is not None

    @property
    def reachable(self) -> bool:
        """Whether there is a stream to anybody, or one is being opened."""
        return bool(self.up or self.down) or not all(task.done() for task in self._exchanges.values())

    def post_all(self, message: bytes) -> None:
        for member in self.up.keys() | self.down.keys():
            self.post(member, message)

    def silent(self, member: int) -> float:
        """Seconds since anything was heard of a member, on any stream; 0 if nothing ever was."""
        links = [link for link in (self.up.get(member), self.down.get(member)) if link is not None]
        return min((link.silent() for link in links if link.heard is not None), default=0.0)

    def heard_within(self, seconds: float) -> list[int]:
        """Members that were heard lately."""
        members = self.up.keys() | self.down.keys()
        links = {m: [x for x in (self.up.get(m), self.down.get(m)) if x is not None] for m in members}
        return [m for m, some in links.items() if any(x.heard is not None and x.silent() < seconds for x in some)]

    def forgive(self, seconds: float) -> None:
        """This process stood still for so long: what came meanwhile is yet to be read."""
        for link in (*self.up.values(), *self.down.values()):
            link.forgive(seconds)

    def reassure(self, member: int) -> None:
        """Say that this peer is still here."""
        if (link := self.up.get(member) or self.down.get(member)) is not None:
            link.here()

    def end(self) -> None:
        """The step is decided here: close the streams that this peer opened, each once the other side is done as well.

        What is under way on a stream is lost when its opener closes it, and this must not hold up the next step.
        """
        self._closing = asyncio.create_task(self._close_in_time())

    async def _close_in_time(self) -> None:
        waiting = [task for member, task in self._exchanges.items() if member in self.up and member not in self.over]
        if waiting:
            await asyncio.wait(waiting, timeout=LINGER * self._patience.usual)
        await self.close()

    async def close(self) -> None:
        """Send what was posted, then close the streams that this peer opened."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience.usual):
                await asyncio.gather(*(link.flushed() for link in (*self.up.values(), *self.down.values())))
        tasks = list(self._exchanges.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _exchange(self, member: int) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._patience.start + self._patience.usual):
                    stream = await stack.enter_async_context(self._open_stream(self._plan.members[member]))
                link = self.up[member] = Link(stream)
                link.heard = time.monotonic()  # whoever never says anything is silent from here on
                for message in self._waiting.pop(member, []):
                    link.post(message)
                self._listener.opened(member, link)
                await self._read(member, link)
        except Exception as error:
            self.up.pop(member, None)
            self._listener.ended(member, error, up=True)
        finally:
            self.up.pop(member, None)
            self._listener.closed(member)

    def accept(self, member: int, link: Link) -> None:
        """A member has opened a stream to this peer: it can be told something; `serve` hears it."""
        self.down[member] = link

    async def serve(self, member: int, link: Link, finished: "asyncio.Future[None]") -> None:
        """Hear a member that has been accepted, until it closes its stream.

        :param finished: done once the round is over here; then it is heard as long as it has not said that it is done
        """
        listening = asyncio.create_task(self._listen(member, link))
        try:
            waiting: set[asyncio.Future[None]] = {listening, finished}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            failed = finished.done() and finished.exception() is not None
            until = time.monotonic() + (CLOSE_SECONDS if failed else LINGER * self._patience.usual)
            while not listening.done() and link.silent() < CLOSE_SECONDS and time.monotonic() < until:
                await asyncio.wait({listening}, timeout=1.0)  # its line may be slow: it lacks averages yet
        finally:
            listening.cancel()
            if self.down.get(member) is link:
                del self.down[member]

    async def _listen(self, member: int, link: Link) -> None:
        try:
            await self._read(member, link)
        except Exception as error:
            self._listener.ended(member, error, up=False)

    async def _read(self, member: int, link: Link) -> None:
        while True:
            kind, content = wire.read(await link.receive(self._limit))
            if kind == Kind.OVER:
                self.over.add(member)
                if self._closing is not None:
                    return
            elif kind != Kind.HERE:
                self._listener.heard(member, link, kind, content)
