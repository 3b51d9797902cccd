"""Reaches a peer's service, directly or through others."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from dedloc_kit.swarm.network.service import Endpoint, Service, Stream, encode
from dedloc_kit.swarm.remote.forwarded import GREETING_SECONDS
from dedloc_kit.swarm.remote.forwarding import ForwardingService, Wanted
from dedloc_kit.swarm.remote.greeting import MAX_GREETING_BYTES, Greeter
from dedloc_kit.swarm.remote.tls import Certificate, secured

REMEMBER_SECONDS = 300.0
"""For so long a peer is reached through whom it was reached; then it is dialled again."""
FAILED_SECONDS = 600.0
"""For so long a forwarder that failed is tried behind the others."""
MAX_FORWARDERS = 4
"""That are tried for one stream."""


class Caller:
    """Opens streams to others' services.

    :param forwarders: to a peer (base58): others that can be dialled and may forward to it, the best first
    """

    def __init__(self, endpoint: Endpoint, greeter: Greeter, forwarders: Callable[[str], Sequence[str]]) -> None:
        self._endpoint, self._greeter, self._forwarders = endpoint, greeter, forwarders
        self._worked: dict[str, tuple[str, float]] = {}  # by peer: through whom, and when
        self._failed: dict[str, float] = {}  # forwarders, and when

    @asynccontextmanager
    async def open(self, peer: str, service: Service | type[Service], first: bytes = b"") -> AsyncIterator[Stream]:
        """As `Endpoint.open`, but a peer that cannot be dialled is reached through another one."""
        async with AsyncExitStack() as stack:
            why: list[str] = []
            for forwarder in self._ways(peer):
                try:
                    stream = await stack.enter_async_context(self._by(forwarder, peer, service, first))
                    break
                except OSError as error:
                    self._failed_by(forwarder, peer)
                    why.append(str(error) or repr(error))
            else:
                raise ConnectionError(f"{peer} is reached neither directly nor through others: {'; '.join(why):.300}")
            self._worked[peer] = forwarder, time.monotonic()
            try:
                yield stream
            except OSError:
                self._failed_by(forwarder, peer)
                raise

    def _ways(self, peer: str) -> Iterator[str]:
        """Through whom to try, one after the other; nobody ("") is directly."""
        now = time.monotonic()
        self._worked = {p: way for p, way in self._worked.items() if now < way[1] + REMEMBER_SECONDS}
        forwarders = [forwarder for forwarder in self._forwarders(peer) if forwarder != peer]
        self._failed = {forwarder: at for forwarder, at in self._failed.items() if now < at + FAILED_SECONDS}
        forwarders.sort(key=lambda forwarder: self._failed.get(forwarder, -math.inf))
        last, _ = self._worked.get(peer, ("", 0.0))
        return iter(dict.fromkeys([last, "", *forwarders[:MAX_FORWARDERS]]))

    def _failed_by(self, forwarder: str, peer: str) -> None:
        """It may not be to blame, but others are tried before it the next time."""
        self._worked.pop(peer, None)
        if forwarder:
            self._failed[forwarder] = time.monotonic()

    def _by(
        self, forwarder: str, peer: str, service: Service | type[Service], first: bytes
    ) -> AbstractAsyncContextManager[Stream]:
        if forwarder:
            return self._through(forwarder, peer, service, first)
        return self._endpoint.open(peer, service, first)

    @asynccontextmanager
    async def _through(
        self, forwarder: str, peer: str, service: Service | type[Service], first: bytes
    ) -> AsyncIterator[Stream]:
        async with self._endpoint.open(forwarder, ForwardingService, encode(Wanted(peer=peer))) as stream:
            try:
                async with asyncio.timeout(GREETING_SECONDS):
                    inner = await self._secured(stream, peer, service.name)
                if first:
                    await inner.send(first)
            except (EOFError, ValueError) as error:
                raise ConnectionError(f"through {forwarder}: {error}") from None
            try:
                yield inner
            finally:
                inner.close()

    async def _secured(self, stream: Stream, peer: str, service: str) -> Stream:
        """Raises OSError, EOFError or ValueError unless this peer itself answers for this service."""
        mine = Certificate()
        await stream.send(self._greeter.write(peer, service, mine.der))
        theirs = self._greeter.read(await stream.receive(MAX_GREETING_BYTES))
        if (theirs.peer, theirs.service) != (peer, service):
            raise ValueError("somebody else answers")
        return await secured(stream, mine, theirs.certificate, server_side=False)
