"""The one way to answer peers and to ask them.

A service has a name and serves one peer at a time on a stream of messages: a length (4 bytes, big-endian) and the
content; an empty one says "still here". Lengths are checked before memory is taken. Most services answer a record with
a record. Not hivemind's protobuf streams: those believe whatever length the other side claims.
"""

import asyncio
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.wrappers_pb2 import BytesValue  # type: ignore[import-untyped]
from hivemind.p2p import P2P, P2PContext, P2PDaemonError, P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo
from hivemind.utils import MSGPackSerializer

from dedloc_kit.records.record import Record
from dedloc_kit.swarm.network.bounds import BoundedP2P, Capped
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.unpacking import unpack

CONNECT_SECONDS = 10.0
MAX_RECORD_BYTES = 4096
"""Of a record that is asked or answered, unless its service says otherwise."""
RECEIVE_SECONDS = 10.0
"""For a message whose sender has nothing to wait for."""
SEND_SECONDS = 60.0
"""Whoever has not taken a message after this long is gone, or should not hold a place."""
CLOSE_SECONDS = 10.0

_log = logging.getLogger(__name__)

Q = TypeVar("Q", bound=Record)
A = TypeVar("A", bound=Record)
R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    return bytes(MSGPackSerializer.dumps(record.model_dump()))


def decode(data: bytes) -> Any:
    """Plain values from a peer's bytes; raises ValueError if they are none."""
    try:
        return unpack(data)
    except ValueError as error:
        raise ValueError(f"it cannot be decoded ({error!r:.80})") from None


class Reader(Protocol):
    """What a stream needs of an `asyncio.StreamReader`."""

    async def read(self, n: int, /) -> bytes: ...


class Writer(Protocol):
    """What a stream needs of an `asyncio.StreamWriter`."""

    @property
    def transport(self) -> asyncio.WriteTransport: ...

    def write(self, data: bytes | memoryview, /) -> None: ...

    async def drain(self) -> None: ...

    def is_closing(self) -> bool: ...

    def close(self) -> None: ...


class Stream:
    """Messages to and from one peer."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self.reader, self.writer = reader, writer
        self.heard = time.monotonic()
        """When any bytes came last."""
        self.silence = 0.0
        """Seconds in which none came, at most, before the last message and within it."""
        self.arriving = False
        """Has a message begun to come?"""

    async def send(self, content: bytes | memoryview) -> None:
        """Raises OSError if the other side is gone or does not take it."""
        if self.writer.is_closing():  # uvloop raises a RuntimeError
            raise ConnectionResetError("the stream is closed")
        self.writer.write(len(content).to_bytes(4, "big"))
        if content:
            self.writer.write(content)
        async with asyncio.timeout(SEND_SECONDS):
            await self.writer.drain()

    async def receive(self, limit: int) -> bytes:
        """The next message that is not empty, of at most `limit` bytes.

        Raises ValueError if it is longer, EOFError if the other side closes the stream, OSError if it breaks.
        """
        self.silence = 0.0
        while True:
            length = int.from_bytes(await self._read(4), "big")
            if length > limit:
                raise ValueError(f"a message of {length} bytes is announced where at most {limit} are right")
            if length:
                self.arriving = True
                message = await self._read(length)
                self.arriving = False
                return message

    async def _read(self, length: int) -> bytes:
        """So many bytes. A long message may take longer on its way than anyone may be silent: each piece counts."""
        pieces, left = list[bytes](), length
        while left:
            piece = await self.reader.read(left)
            if not piece:
                raise asyncio.IncompleteReadError(b"".join(pieces), length)
            self.heard, before = time.monotonic(), self.heard
            self.silence = max(self.silence, self.heard - before)
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)

    async def receive_record(self, kind: type[R], limit: int = MAX_RECORD_BYTES) -> R:
        """The next message as such a record; raises as `receive`, and ValueError if it is none."""
        return kind.parse(decode(await self.receive(limit)))

    async def receive_question(self, kind: type[R], limit: int = MAX_RECORD_BYTES) -> R:
        """The same from whoever has nothing to wait for; raises TimeoutError, an OSError, if it does not come."""
        async with asyncio.timeout(RECEIVE_SECONDS):
            return await self.receive_record(kind, limit)

    async def closed(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the other side closes the stream, at most so long; what it still sends is thrown away.

        p2pd resets a stream as soon as its server closes it, and what is still on the way is lost: whoever has asked
        closes.
        """
        with suppress(OSError, EOFError):
            async with asyncio.timeout(seconds):
                while await self.reader.read(2**16):
                    pass

    async def turn_down(self, answer: bytes, error: BaseException) -> None:
        """Answer what ended in this error, and wait until the other side closes the stream.

        Meanwhile nothing is kept of what has come: the frames that the error went through hold it, as a tensor that is
        not all there, and nobody counts it any more.
        """
        each: BaseException | None = error
        while each is not None:
            traceback.clear_frames(each.__traceback__)
            each = each.__context__
        await self.send(answer)
        await self.closed()

    def close(self) -> None:
        self.writer.close()


class Service(ABC):
    """Answers peers that may take part, one stream each; it is registered by the `Endpoint` of the process in which it
    lives."""

    name: str
    """On the network, behind the run's."""

    @abstractmethod
    async def serve(self, peer: str, stream: Stream) -> None:
        """Serve one peer until it is done; the stream is closed afterwards. What is wrong with the stream or with what
        the peer sends (OSError, EOFError, ValueError) ends it, and nothing else."""


class RecordService(Service, Generic[Q, A]):
    """Answers a record with a record."""

    question: type[Q]
    reply: type[A]
    gated = True
    """Whether only those are served who may take part. Others ask in one call, which p2pd bounds: strangers' streams
    would take the places of the members'."""

    @abstractmethod
    async def answer(self, peer: str, question: Q) -> A:
        """Raises ValueError for what is not to be answered."""

    async def serve(self, peer: str, stream: Stream) -> None:
        question = await stream.receive_question(self.question)
        await stream.send(encode(await self.answer(peer, question)))
        await stream.closed()


class NoAnswer(Exception):
    """A peer was not reached, is not asked or does not serve us, broke off, was too slow, or sent nonsense."""


@contextmanager
def answered(peer: str) -> Iterator[None]:
    """Whatever is wrong with a peer or with what it answers is raised as NoAnswer."""
    try:
        yield
    except (OSError, EOFError, ValueError, P2PDaemonError, P2PHandlerError) as error:
        raise NoAnswer(f"{peer} does not answer: {str(error) or repr(error):.200}") from None


class Endpoint:
    """Where one process of a peer serves others and asks them.

    :param p2p: what is served and asked through it passes its gate, if it has one
    """

    def __init__(self, p2p: P2P, run_id: str) -> None:
        self.p2p, self.run_id = p2p, run_id
        # hivemind keeps no reference to the tasks that serve a peer, and asyncio's are weak: one was destroyed by the
        # garbage collector while it waited.
        self._serving: set[asyncio.Task[Any]] = set()

    async def add(self, service: Service) -> None:
        """Serve from now on."""

        async def handle(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._serving.add(task)
            try:
                with closing(writer):
                    await service.serve(info.peer_id.to_base58(), Stream(reader, writer))
            except (OSError, EOFError, ValueError) as error:  # how streams end
                _log.debug("%s: a stream of %s ended: %r", service.name, info.peer_id, error)
                writer.transport.abort()
            finally:
                self._serving.discard(task)

        name = Names(self.run_id).service(service.name)
        if isinstance(service, RecordService) and not service.gated:
            answer = partial(_answer, service)
            await BoundedP2P._add_protobuf_unary_handler(self.p2p, name, answer, BytesValue)
        else:
            await self.p2p.add_binary_stream_handler(name, handle)

    @asynccontextmanager
    async def open(self, peer: str, service: Service | type[Service], first: bytes = b"") -> AsyncIterator[Stream]:
        """A stream to a peer's service, closed at the end.

        :param first: is sent at once

        Raises OSError if the peer is not reached or takes no part; TimeoutError is one.
        """
        name = Names(self.run_id).service(service.name)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, reader, writer = await self.p2p.call_binary_stream_handler(PeerID.from_base58(peer), name)
        except P2PDaemonError as error:
            raise ConnectionError(str(error)) from None
        with closing(writer):
            stream = Stream(reader, writer)
            if first:
                await stream.send(first)
            yield stream

    async def ask(
        self, peer: str, service: RecordService[Q, A] | type[RecordService[Q, A]], question: Q, seconds: float
    ) -> A:
        """What a peer's service answers within so many seconds; raises NoAnswer."""
        with answered(peer):
            async with asyncio.timeout(seconds):
                if not service.gated:
                    return await self._call(peer, service, question)
                async with self.open(peer, service, encode(question)) as stream:
                    return await stream.receive_record(service.reply)

    async def _call(self, peer: str, service: RecordService[Q, A] | type[RecordService[Q, A]], question: Q) -> A:
        """Past the gates, ours and theirs."""
        name, kind = Names(self.run_id).service(service.name), Capped(BytesValue, MAX_RECORD_BYTES)
        call = P2P._call_unary_protobuf_handler(
            self.p2p, PeerID.from_base58(peer), name, BytesValue(value=encode(question)), kind
        )
        return service.reply.parse(decode((await call).value))


async def _answer(service: RecordService[Any, Any], request: BytesValue, context: P2PContext) -> BytesValue:
    if len(request.value) > MAX_RECORD_BYTES:
        raise ValueError("too long")
    question = service.question.parse(decode(request.value))
    return BytesValue(value=encode(await service.answer(context.remote_id.to_base58(), question)))
