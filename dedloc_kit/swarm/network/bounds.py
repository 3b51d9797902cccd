"""How much of a peer's memory and time another one may take: bounds that hold before anything is read.

hivemind reads calls and answers of any length that p2pd lets through, which is 4 MiB, and serves any number of them at
a time. So every process of ours talks through a `BoundedP2P`: each kind of call has its most bytes, and a peer has its
share of what is served at the same time. What comes in a stream is bounded by its service: see `Stream`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from google.protobuf.message import Message  # type: ignore[import-untyped]
from hivemind.p2p import P2P, P2PContext, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

CLOSE_SECONDS = 10.0
STREAMS_AT_A_TIME, CALLS_AT_A_TIME = (24, 512), (32, 512)
"""Which one peer may have open to a process of ours, and all together. An honest one has at most a dozen."""
WITHOUT_RELAY = f"-f={Path(__file__).with_name('p2pd.json')}"
"""p2pd's option `-relay` leaves its relay on; only a file of settings turns it off."""

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
        self._held: Counter[PeerID | str] = Counter()

    @contextmanager
    def place(self, peer: PeerID | str) -> Iterator[None]:
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


class ByteBudget:
    """Bytes in memory at a time: a peer may have as many as are left for the others."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._taken: Counter[str] = Counter()

    @contextmanager
    def place(self, peer: str, size: int) -> Iterator[None]:
        """While so many are taken for a peer; raises TooMuch if there are too few."""
        if self._taken[peer] + size > self._left - size:
            raise TooMuch(f"there is no room for {size} bytes")
        self._left -= size
        self._taken[peer] += size
        try:
            yield
        finally:
            self._left += size
            self._taken[peer] -= size
            if not self._taken[peer]:
                del self._taken[peer]


class Capped:
    """A kind of message that is not read from more bytes than it may have; in place of its class."""

    def __init__(self, kind: type[Message], most: int) -> None:
        self._kind, self._most = kind, most

    def FromString(self, data: bytes) -> Message:
        if len(data) > self._most:
            raise TooMuch(f"{len(data)} bytes where {self._most} are enough")
        return self._kind.FromString(data)


class BoundedP2P(P2P):
    """hivemind's P2P, within bounds."""

    def __init__(self) -> None:
        super().__init__()
        self._streams, self._calls = AtATime(*STREAMS_AT_A_TIME), AtATime(*CALLS_AT_A_TIME)

    @staticmethod
    def _make_process_args(program: str, **options: Any) -> list[str]:
        """A relay would carry strangers' traffic, and takes half a second of a core and 30 MB to begin with."""
        arguments: list[str] = P2P._make_process_args(program, WITHOUT_RELAY, **options)
        return arguments

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
        """What comes in a stream has its own bounds."""

        async def bounded(stream: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                with self._streams.place(stream.peer_id):
                    try:
                        await handler(stream, reader, writer)
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


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Whoever does not take what is left keeps its place until that is thrown away."""
    writer.close()
    try:
        with suppress(OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await writer.wait_closed()
    finally:
        writer.transport.abort()
