"""The seams in memory: peers on one event loop in virtual time, everything from one seed.

A test runs in seconds of `Loop`, which jumps to the next timer when nothing else is to do.
"""

import asyncio
import random
import selectors
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from math import inf, nextafter
from typing import Any, TypeVar

from dedloc_kit.records.record import SignedRecord
from dedloc_kit.swarm.p2p import seams

T = TypeVar("T")
EPOCH = 1.7e9
"""The common time at which a world begins."""


class _Jump(selectors.SelectSelector):
    """Advances the loop's time in place of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits, and no timer will end that")
        self.now = nextafter(self.now + max(0.0, timeout), inf)  # asyncio wants a timer to be past
        return []


class Loop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. RuntimeError if all tasks wait for ever."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(work)


class World:
    """What the peers share.

    :ivar delay: seconds of a message, and of a look into the directory, on average
    :ivar stale: how often a look finds an older entry of a peer in place of its newest one
    :ivar lost: how often it misses an entry
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.delay, self.stale, self.lost = 0.02, 0.0, 0.0
        self.cuts: set[tuple[str, str]] = set()
        """Pairs of a sender and a receiver: what is sent then vanishes."""
        self.services: dict[tuple[str, str], seams.Handler] = {}
        self.entries: defaultdict[str, defaultdict[str, list[seams.Entry]]] = defaultdict(lambda: defaultdict(list))
        """By key and peer, the oldest one first."""
        self.tasks: set[asyncio.Task[None]] = set()

    def wait(self) -> float:
        """Seconds of one message."""
        return self.delay * self.random.uniform(0.5, 1.5)


class MemoryClock:
    """:ivar skew: seconds by which this peer's common time is ahead"""

    def __init__(self) -> None:
        self.skew = 0.0

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def time(self) -> float:
        return EPOCH + self.now() + self.skew

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def deadline(self, at: float) -> AbstractAsyncContextManager[object]:
        return asyncio.timeout_at(None if at == inf else at)


class MemoryStream:
    """One end; `pair` makes both."""

    other: "MemoryStream"

    def __init__(self, world: World, me: str, peer: str) -> None:
        self._world, self._way = world, (me, peer)
        self._came = asyncio.Queue[bytes | Exception]()
        self._on_the_way = deque[bytes | Exception]()
        self._arrives = self.heard = asyncio.get_running_loop().time()
        self._open = True

    @classmethod
    def pair(cls, world: World, caller: str, server: str) -> "tuple[MemoryStream, MemoryStream]":
        here, there = cls(world, caller, server), cls(world, server, caller)
        here.other, there.other = there, here
        return here, there

    async def send(self, content: bytes | memoryview, /) -> None:
        if not self._open:
            raise ConnectionResetError("the stream is closed")
        self._deliver(bytes(content))
        await asyncio.sleep(0)

    async def receive(self, limit: int, /) -> bytes:
        while True:
            found = await self._came.get()
            if isinstance(found, Exception):
                self._came.put_nowait(found)
                raise found
            if len(found) > limit:
                raise ValueError(f"a message of {len(found)} bytes where at most {limit} are right")
            if found:
                return found

    async def closed(self, seconds: float = 10.0, /) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not isinstance(await self._came.get(), Exception):
                    pass

    def close(self) -> None:
        if self._open:
            self._open = False
            self._deliver(EOFError("the other side has closed the stream"))

    def abort(self) -> None:
        """Both ends are broken, and what is on the way is lost."""
        for end in (self, self.other):
            if end._open:
                end._open = False
                end._came.put_nowait(ConnectionResetError("the stream is broken"))

    def _deliver(self, message: bytes | Exception) -> None:
        if self._way in self._world.cuts:
            return
        loop = asyncio.get_running_loop()
        self._arrives = max(self._arrives, loop.time() + self._world.wait())
        self._on_the_way.append(message)  # timers of one time come in any order
        loop.call_at(self._arrives, self.other._arrive)

    def _arrive(self) -> None:
        message = self.other._on_the_way.popleft()
        if not self._open or self.other._way in self._world.cuts:
            return
        self.heard = asyncio.get_running_loop().time()
        if isinstance(message, EOFError):
            self._open = False
        self._came.put_nowait(message)


class MemoryNetwork:
    def __init__(self, world: World, peer: str) -> None:
        self._world, self.peer = world, peer

    async def serve(self, service: str, handler: seams.Handler, /) -> None:
        self._world.services[self.peer, service] = handler

    @asynccontextmanager
    async def open(self, peer: str, service: str, /) -> AsyncIterator[seams.Stream]:
        await asyncio.sleep(self._world.wait())
        handler = self._world.services.get((peer, service))
        if handler is None or {(self.peer, peer), (peer, self.peer)} & self._world.cuts:
            raise ConnectionError(f"{peer} is not reached, or does not serve {service}")
        here, there = MemoryStream.pair(self._world, self.peer, peer)
        task = asyncio.create_task(self._serve(handler, there))
        self._world.tasks.add(task)
        task.add_done_callback(self._world.tasks.discard)
        try:
            yield here
        finally:
            here.close()

    async def _serve(self, handler: seams.Handler, stream: MemoryStream) -> None:
        try:
            await handler(self.peer, stream)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            stream.abort()  # p2pd resets what a server closes


class MemoryRecords:
    def __init__(self, world: World, peer: str, clock: MemoryClock) -> None:
        self._world, self._peer, self._clock = world, peer, clock

    async def put(self, key: str, record: SignedRecord | None, expires: float, /) -> bool:
        return await self.put_anything(key, None if record is None else record.model_dump(), expires)

    async def put_anything(self, key: str, value: Any, expires: float) -> bool:
        """As a peer that does not keep to the records."""
        await asyncio.sleep(self._world.wait())
        there = self._world.entries[key][self._peer]
        if expires <= self._clock.time() or (there and expires <= there[-1].expires):
            return False
        there.append(seams.Entry(value, expires))
        return True

    async def get(self, key: str, /, *, sufficient: float | None = None) -> Mapping[str, seams.Entry]:
        await asyncio.sleep(self._world.wait())
        return {peer: found for peer, some in self._world.entries[key].items() if (found := self._seen(some))}

    def _seen(self, some: list[seams.Entry]) -> seams.Entry | None:
        if self._world.random.random() < self._world.lost:
            return None
        older = self._world.random.random() < self._world.stale
        living = [entry for entry in some[: -1 if older else None] if entry.expires > self._clock.time()]
        return living[-1] if living else None


class MemoryDisk:
    """:ivar full: nothing can be written"""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.full = False
        self._writing = asyncio.Lock()

    async def read(self, name: str, limit: int, /) -> bytes | None:
        _check_name(name)
        content = self.files.get(name)
        if content is not None and len(content) > limit:
            raise ValueError(f"{name} has more than {limit} bytes")
        return content

    async def write(self, name: str, content: bytes, /) -> None:
        _check_name(name)
        async with self._writing:
            await asyncio.sleep(0.01)
            if self.full:
                raise OSError("the disk is full")
            self.files[name] = content

    async def remove(self, name: str, /) -> None:
        _check_name(name)
        self.files.pop(name, None)


def _check_name(name: str) -> None:
    if not name or name[0] == "." or not name.isascii() or set(name) & set("/\\\0\n "):
        raise ValueError(f"{name!r} is not the name of a file")
