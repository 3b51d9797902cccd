"""A stream to a peer that stays open over several calls."""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from dedloc_kit.swarm.network.service import Service, Stream


class Opener(Protocol):
    """Opens streams as an `Endpoint` does, be it by way of others."""

    def open(
        self, peer: str, service: Service | type[Service], first: bytes = b""
    ) -> AbstractAsyncContextManager[Stream]: ...


class Line:
    """Its stream is opened and closed in a task of its own, so that it may end in another than it began in."""

    def __init__(self, stream: Stream, held: asyncio.Task[None]) -> None:
        self.stream = stream
        self._held = held

    @classmethod
    async def open(cls, opener: Opener, peer: str, service: type[Service], first: bytes) -> "Line":
        """Raises OSError as `Endpoint.open`."""
        opened: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()

        async def hold() -> None:
            try:
                async with opener.open(peer, service, first) as stream:
                    if not opened.done():
                        opened.set_result(stream)
                        await asyncio.Event().wait()
            except (OSError, EOFError, ValueError) as error:
                if not opened.done():
                    opened.set_exception(error)

        held = asyncio.create_task(hold())
        try:
            return cls(await opened, held)
        except BaseException:
            held.cancel()
            raise

    async def close(self) -> None:
        self._held.cancel()
        with suppress(asyncio.CancelledError):
            await self._held
