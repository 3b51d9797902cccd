"""A peer that uses what it offers itself: nobody can dial itself, so its streams stay within the process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress

from dedloc_kit.swarm.network.service import Service, Stream
from dedloc_kit.swarm.remote.lines import Opener


class WithOwn:
    """Opens streams to others as another opener does, and to this peer's own services.

    :param me: this peer's id
    """

    def __init__(self, opener: Opener, me: str, services: Sequence[Service]) -> None:
        self._opener, self._me = opener, me
        self._services = {service.name: service for service in services}

    def open(
        self, peer: str, service: Service | type[Service], first: bytes = b""
    ) -> AbstractAsyncContextManager[Stream]:
        if peer != self._me:
            return self._opener.open(peer, service, first)
        return self._here(self._services[service.name], first)

    @asynccontextmanager
    async def _here(self, service: Service, first: bytes) -> AsyncIterator[Stream]:
        here, there = [Stream(*await asyncio.open_connection(sock=end)) for end in socket.socketpair()]

        async def serve() -> None:
            with closing(there.writer), suppress(OSError, EOFError, ValueError):
                await service.serve(self._me, there)

        serving = asyncio.create_task(serve())
        try:
            with closing(here.writer):
                if first:
                    await here.send(first)
                yield here
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
