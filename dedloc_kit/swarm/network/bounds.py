"""How much of a peer's memory and time another one may take: bounds that hold before anything is read.

hivemind believes whatever length the other side announces, of those it serves as of those it asks, and serves any
number of calls at a time. So every process of ours talks through a `BoundedP2P`: each kind of message has its most
bytes, one that has begun must come to its end, and a peer has its share of what is served at the same time. What
comes as one call and one answer goes through p2pd, which refuses more than 4 MiB by itself.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message  # type: ignore[import-untyped]
from hivemind.p2p import P2P, P2PContext, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from dedloc_kit.swarm.network.signing import MAX_RECORD_BYTES
from dedloc_kit.training.flat import CHUNK

MOST_MEMBERS = 512
"""Of one group."""
MESSAGE_SECONDS = 60.0
"""For one message, from its first byte to its last."""
CLOSE_SECONDS = 10.0
STREAMS_AT_A_TIME, CALLS_AT_A_TIME = (24, 512), (32, 512)
"""Which one peer may have open to a process of ours, and all together. An honest one has at most a dozen."""

BinaryHandler = Callable[[StreamInfo, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
M = TypeVar("M", bound=Message)


class Bounds(NamedTuple):
    """The most bytes of one message."""

    asked: int
    answered: int


_SMALL = Bounds(5_000, 5_000)
_BOUNDS = {
    "rpc_find": Bounds(100_000, DEFAULT_MAX_MSG_SIZE),
    "rpc_store": Bounds(DEFAULT_MAX_MSG_SIZE, 100_000),  # a new node is told all that lies under a key at once
    "rpc_join_group": Bounds(5_000, MOST_MEMBERS * 200),  # the answer names all members
    "rpc_aggregate_part": Bounds(4 * CHUNK + 5_000, MOST_MEMBERS * MAX_RECORD_BYTES),  # their introductions as well
}
"""By the last part of what a service is called; whatever is not named here is small."""


class TooMuch(P2PHandlerError):
    """A peer sends or asks for more than anyone needs."""


def bounds_of(service: str) -> Bounds:
    return _BOUNDS.get(service.rpartition(".")[2], _SMALL)


class AtATime:
    """What is served at the same time: the fewer places are left, the fewer may one peer have."""

    def __init__(self, each: int, together: int) -> None:
        self._each, self._together = each, together
        self._held: Counter[PeerID] = Counter()

    @contextmanager
    def place(self, peer: PeerID) -> Iterator[None]:
        """While one thing is done for a peer; raises TooMuch if it has its share already."""
        free = self._together - self._held.total()
        if not free or self._held[peer] >= min(self._each, 1 + free // 8):
            raise TooMuch("too much at a time")
        self._held[peer] += 1
        try:
            yield
        finally:
            self._held[peer] -= 1
            if not self._held[peer]:
                del self._held[peer]


class Capped:
    """A kind of message that is not read from more bytes than it may have; in place of its class."""

    def __init__(self, kind: type[Message], most: int) -> None:
        self._kind, self._most = kind, most

    def FromString(self, data: bytes) -> Message:
        if len(data) > self._most:
            raise TooMuch(f"{len(data)} bytes where {self._most} are enough")
        return self._kind.FromString(data)


class _MessageReader:
    """What hivemind reads messages from, each in three parts: a mark, a length, and the content."""

    def __init__(self, reader: asyncio.StreamReader, most: int, refusal: Exception) -> None:
        self._reader, self._most, self._refusal = reader, most, refusal
        self._parts = cycle(("mark", "length", "content"))
        self._ends: float | None = None

    async def readexactly(self, size: int) -> bytes:
        part = next(self._parts)
        if part == "content" and size > self._most:
            raise self._refusal
        try:
            async with asyncio.timeout_at(self._ends):
                data = await self._reader.readexactly(size)
        except TimeoutError:
            raise self._refusal from None
        self._ends = None if part == "content" else self._ends or asyncio.get_running_loop().time() + MESSAGE_SECONDS
        return data


class BoundedP2P(P2P):
    """hivemind's P2P, within bounds."""

    def __init__(self) -> None:
        super().__init__()
        self._streams, self._calls = AtATime(*STREAMS_AT_A_TIME), AtATime(*CALLS_AT_A_TIME)

    # What others ask of us

    async def _add_protobuf_unary_handler(
        self,
        handle_name: str,
        handler: Callable[[Any, P2PContext], Awaitable[Any]],
        input_protobuf_type: type[Message],
        balanced: bool = False,
    ) -> None:
        async def bounded(request: Any, context: P2PContext) -> Any:
            with self._calls.place(context.remote_id):
                return await handler(request, context)

        kind = Capped(input_protobuf_type, bounds_of(handle_name).asked)
        await super()._add_protobuf_unary_handler(handle_name, bounded, kind, balanced)

    async def add_binary_stream_handler(self, name: str, handler: BinaryHandler, balanced: bool = False) -> None:
        """Also what hivemind's streams of messages are made of; whatever else comes in a stream has its own bounds."""

        async def bounded(stream: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # As if the other side had gone, which hivemind takes quietly: nobody should fill our log.
            gone = asyncio.IncompleteReadError(b"", None)
            try:
                with self._streams.place(stream.peer_id):
                    try:
                        await handler(stream, _reader(name, reader, bounds_of(name).asked, gone), writer)
                    finally:
                        await _closed(writer)
            except TooMuch:
                writer.transport.abort()

        await super().add_binary_stream_handler(name, bounded, balanced)

    # What others answer

    async def _call_unary_protobuf_handler(
        self, peer_id: PeerID, handle_name: str, input: Message, output_protobuf_type: type[M]
    ) -> M:
        kind = Capped(output_protobuf_type, bounds_of(handle_name).answered)
        answer: M = await super()._call_unary_protobuf_handler(peer_id, handle_name, input, kind)
        return answer

    async def call_binary_stream_handler(
        self, peer_id: PeerID, handler_name: str
    ) -> tuple[StreamInfo, asyncio.StreamReader, asyncio.StreamWriter]:
        stream, reader, writer = await super().call_binary_stream_handler(peer_id, handler_name)
        refusal = TooMuch(f"{peer_id} announces more than {handler_name} has to say, or does not say it")
        return stream, _reader(handler_name, reader, bounds_of(handler_name).answered, refusal), writer


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Whoever does not take what is left keeps its place until that is thrown away."""
    writer.close()
    try:
        with suppress(OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await writer.wait_closed()
    finally:
        writer.transport.abort()


def _reader(service: str, reader: asyncio.StreamReader, most: int, refusal: Exception) -> Any:
    return _MessageReader(reader, most, refusal) if "rpc_" in service else reader
