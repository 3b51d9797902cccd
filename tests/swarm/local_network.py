"""A network in one process: real services over pairs of sockets instead of libp2p; peers can be cut off."""

import asyncio
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

from dedloc_kit.swarm.network.service import Endpoint, Service, Stream


class LocalNetwork:
    def __init__(self) -> None:
        self._services: dict[tuple[str, str], Service] = {}
        self._lines: dict[str, set[Stream]] = {}
        self._between: list[tuple[str, str, Stream]] = []
        self._named: list[tuple[tuple[str, str, str], Stream, _Writer]] = []
        self._side: frozenset[str] = frozenset()
        self._frozen: set[str] = set()
        self._serving: set[asyncio.Task[None]] = set()

    def endpoint(self, peer: str) -> "LocalEndpoint":
        return LocalEndpoint(self, peer)

    def cut(self, peer: str) -> None:
        """This peer is gone: its streams break, and nobody reaches it any more."""
        for place in [place for place in self._services if place[0] == peer]:
            del self._services[place]
        for stream in self._lines.pop(peer, set()):
            stream.writer.transport.abort()

    def freeze(self, peer: str) -> None:
        """What this peer writes goes nowhere from now on; its streams stand."""
        self._frozen.add(peer)

    def is_frozen(self, peer: str) -> bool:
        return peer in self._frozen

    def thaw(self, peer: str) -> None:
        self._frozen.discard(peer)

    def break_lines(self, me: str, peer: str, name: str) -> None:
        """Streams of one peer to this service of another one break; new ones can be opened."""
        for place, stream, _ in self._named:
            if place == (me, peer, name):
                stream.writer.transport.abort()

    def mute_lines(self, me: str, peer: str, name: str) -> None:
        """What this service of the other one says on these streams goes nowhere; new ones can be opened."""
        for place, _, writer in self._named:
            if place == (me, peer, name):
                writer.muted = True

    def part(self, side: Collection[str]) -> None:
        """From now on these reach each other alone, and the others each other; nobody at all: all do again."""
        self._side = frozenset(side)
        for me, peer, stream in self._between:
            if self._apart(me, peer):
                stream.writer.transport.abort()
        self._between.clear()

    def _apart(self, me: str, peer: str) -> bool:
        return (me in self._side) != (peer in self._side)

    def serve(self, peer: str, service: Service) -> None:
        self._services[peer, service.name] = service

    async def connect(self, me: str, peer: str, name: str) -> Stream:
        service = self._services.get((peer, name))
        if service is None or (me, name) not in self._services or self._apart(me, peer):
            raise ConnectionError(f"{peer} is not there")
        ends = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
        writer = _Writer(ends[1][1], self._frozen, peer)
        here, there = Stream(*ends[0]), Stream(ends[1][0], writer)
        self._named.append(((me, peer, name), here, writer))
        self._between += [(me, peer, stream) for stream in (here, there)]
        self._lines.setdefault(me, set()).update({here, there})
        self._lines.setdefault(peer, set()).update({here, there})
        task = asyncio.create_task(self._serve(service, me, there))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return here

    async def _serve(self, service: Service, peer: str, stream: Stream) -> None:
        with suppress(OSError, EOFError, ValueError):
            await service.serve(peer, stream)
        stream.close()


class _Writer:
    """Writes nothing once its peer is frozen or it is muted."""

    muted = False

    def __init__(self, writer: asyncio.StreamWriter, frozen: Collection[str], peer: str) -> None:
        self._frozen, self._peer = frozen, peer
        self.transport = writer.transport
        self.drain, self.is_closing, self.close = writer.drain, writer.is_closing, writer.close
        self._write = writer.write

    def write(self, data: bytes | memoryview, /) -> None:
        if self._peer not in self._frozen and not self.muted:
            self._write(data)


class LocalEndpoint(Endpoint):
    """One peer's."""

    def __init__(self, network: LocalNetwork, peer: str) -> None:
        super().__init__(None, "local-0123456789abcdef")
        self._network, self._peer = network, peer

    async def add(self, service: Service) -> None:
        self._network.serve(self._peer, service)

    @asynccontextmanager
    async def open(self, peer: str, service: Service | type[Service], first: bytes = b"") -> AsyncIterator[Stream]:
        stream = await self._network.connect(self._peer, peer, service.name)
        try:
            if first:
                await stream.send(first)
            yield stream
        finally:
            stream.close()
