"""Streams to a peer that stay open over several calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import NamedTuple, Protocol

from dedloc_kit.swarm.network.service import Service, Stream
from dedloc_kit.swarm.remote.listening import Listening


class Opener(Protocol):
    """Opens streams as an `Endpoint` does, be it by way of others."""

    def open(
        self, peer: str, service: Service | type[Service], first: bytes = b""
    ) -> AbstractAsyncContextManager[Stream]: ...


class Line:
    """Its stream is opened and closed in a task of its own, so that it may end in another than it began in."""

    def __init__(self, stream: Stream, held: asyncio.Task[None], over: asyncio.Future[None]) -> None:
        self.stream = stream
        self._held, self._over = held, over

    @classmethod
    async def open(cls, opener: Opener, peer: str, service: type[Service], first: bytes) -> "Line":
        """Raises OSError as `Endpoint.open`."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Stream] = loop.create_future()
        over: asyncio.Future[None] = loop.create_future()

        async def hold() -> None:
            try:
                async with opener.open(peer, service, first) as stream:
                    if not opened.done():
                        opened.set_result(stream)
                        await over
            except (OSError, EOFError, ValueError) as error:
                if not opened.done():
                    opened.set_exception(error)

        held = asyncio.create_task(hold())
        try:
            return cls(await opened, held, over)
        except BaseException:
            held.cancel()
            raise

    async def close(self, broken: BaseException | None = None) -> None:
        """:param broken: with what the stream has, which whoever opens it again has to know"""
        if isinstance(broken, OSError) and not self._over.done():  # it is where all has been cancelled
            self._over.set_exception(broken)
        else:
            self._held.cancel()
        with suppress(asyncio.CancelledError):
            await self._held


class InUse(NamedTuple):
    """A line, for one call."""

    stream: Stream
    listening: Listening


class Lines:
    """To one service of a peer: each is used by one call at a time, and stays open for the next one.

    :param patience: seconds of silence, at least and at most; see `Listening`
    """

    def __init__(self, opener: Opener, peer: str, service: type[Service], patience: tuple[float, float]) -> None:
        self._opener, self._peer, self._service, self._patience = opener, peer, service, patience
        self._idle: list[tuple[Line, Listening]] = []

    @asynccontextmanager
    async def use(self) -> AsyncIterator[InUse]:
        """One of them, for as long as this lasts; it is closed if that raises, and with it those that go the same way,
        as it seems, if it breaks or falls silent. Raises OSError as `Endpoint.open`."""
        line, listening = self._idle.pop() if self._idle else await self._new()
        try:
            yield InUse(line.stream, listening)
        except BaseException as error:
            await line.close(error)
            if isinstance(error, OSError):
                await self.close()
            raise
        self._idle.append((line, listening))

    async def close(self) -> None:
        """Those that are not in use."""
        idle, self._idle = self._idle, []
        for line, _ in idle:
            await line.close()

    async def _new(self) -> tuple[Line, Listening]:
        line = await Line.open(self._opener, self._peer, self._service, b"")
        return line, Listening(line.stream, *self._patience)
