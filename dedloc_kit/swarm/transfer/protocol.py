"""A large piece of data from peer to peer over libp2p streams, in blocks that may come from several donors.

The asking side sends a Request for a block, the donor answers with a Header and the block in as many messages as it
takes, and so on.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import Field

from dedloc_kit.learning.train.state.sketch import SEED_BYTES
from dedloc_kit.records.record import Count, Digest, Record
from dedloc_kit.swarm.network.service import Reader, Stream, decode, encode

BLOCK_BYTES = 2**22
"""What is asked for at a time. Faster donors take more blocks, and at the end nobody waits long for a slow one."""
MESSAGE_BYTES = 2**18
"""Some hundredths of a second of a home line, after which an all-reduce may go first."""
MAX_METADATA_BYTES = 9_000_000
MAX_HEADER_BYTES = MAX_METADATA_BYTES + 1000
MAX_REQUEST_BYTES = 1000
MAX_VERSION = 100

ALIVE_SECONDS = 1.0
"""How often a donor that has nothing to send yet says that it is still here."""
MAX_PAUSE_SECONDS = 30.0
"""A message goes out at least this often, also while an all-reduce has the line."""
FIRST_ANSWER_SECONDS = 20.0
MIN_STALL_SECONDS, MAX_STALL_SECONDS = 5.0, 30.0
SLOW_SECONDS = 60.0
"""A donor that sends less than one message's content in this time is as good as gone."""

T = TypeVar("T")
Version = Annotated[str, Field(max_length=MAX_VERSION)]
Answer = Literal["here", "busy", "nothing"]


class Request(Record):
    """A block that the asking side wants, or a sketch of the state of a version."""

    what: Literal["state", "average", "sketch", "content"]
    after: Digest = ""
    """For an average: the round before it."""
    version: Version = ""
    """Of which it must be a block; empty for the newest that the donor has. Of content: its SHA-256."""
    begin: Count = 0
    end: Count = 0
    """It may lie beyond the end of the content."""
    seed: Annotated[bytes, Field(max_length=SEED_BYTES)] = b""
    """Of a sketch."""


class Header(Record):
    """What the donor has."""

    answer: Answer
    """`busy`: come back later; `nothing`: it does not have that version."""
    version: Version = ""
    """Equal versions have equal bytes, whoever sends them. With `nothing`: another that it has instead."""
    total: Count = 0
    """Bytes of the whole content."""
    metadata: Annotated[bytes, Field(max_length=MAX_METADATA_BYTES)] = b""
    """Unless the request named the version."""


async def request_header(request: Request, stream: Stream) -> Header:
    """What a donor has, without its content if the request wants no bytes of it.

    Raises ValueError if it sends what no honest donor sends, OSError or EOFError if it breaks off or stalls.
    """
    await stream.send(encode(request))
    return Header.parse(decode(await _Source(stream.reader).message(MAX_HEADER_BYTES)))


async def alive_until(stream: Stream, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, during which the other side hears every second that we are still here."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=ALIVE_SECONDS))[0]:
            await stream.send(b"")
        return task.result()
    finally:
        task.cancel()


async def upload(stream: Stream, block: memoryview, line_free: asyncio.Event, moved: Callable[[], None]) -> None:
    """Send a block; raises OSError if the other side goes away.

    :param moved: called when the other side has taken a message, or was kept waiting
    """
    for start in range(0, len(block), MESSAGE_BYTES):
        if not line_free.is_set():
            await alive_until(stream, _at_most(line_free, MAX_PAUSE_SECONDS))
            moved()
        await stream.send(block[start : start + MESSAGE_BYTES])
        moved()


async def _at_most(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


class Expected(Protocol):
    """What is to be downloaded."""

    @property
    def request(self) -> Request: ...

    def accept(self, header: Header) -> None:
        """Called before any content is taken; raises ValueError to refuse it."""

    def check(self, header: Header, content: memoryview) -> None:
        """Called when all of it is there; raises ValueError to refuse it."""


@dataclass
class _Range:
    begin: int
    end: int


class Download:
    """What has arrived so far of one version of something.

    :param buffer: where the content goes; more than fits is refused
    """

    def __init__(self, expected: Expected, buffer: memoryview) -> None:
        self.expected, self._buffer = expected, buffer
        self.begun = asyncio.Event()
        """Set when the version is known: until then only one donor can be asked."""
        self.discard()

    def discard(self) -> None:
        """Begin again with nothing, at any version."""
        self.header: Header | None = None
        self.received = 0
        self._missing = [_Range(0, len(self._buffer))]
        self.begun.clear()

    @property
    def wants_more(self) -> bool:
        """Is there a block that nobody has been asked for?"""
        return bool(self._missing)

    @property
    def complete(self) -> bool:
        return self.header is not None and self.received == self.header.total

    @property
    def content(self) -> memoryview:
        return self._buffer[: self.header.total if self.header else 0]

    async def take_from(self, stream: Stream) -> Answer | Literal["other"]:
        """Receive blocks from this donor while any are missing, also from others meanwhile.

        Returns "here" when there are no more, otherwise the donor's answer, or "other" if it has another version.
        Raises ValueError if it sends what no honest donor sends; then nothing that this stream brought is kept.
        Raises OSError or EOFError if it breaks off or stalls; then what has arrived is kept.
        """
        source, brought = _Source(stream.reader), list[_Range]()
        try:
            while self._missing:
                block = self._next_block()
                begin = block.begin
                try:
                    answer = await self._take_block(block, source, stream)
                finally:
                    brought.append(_Range(begin, block.begin))
                    self._put_back(block)
                if answer != "here":
                    return answer
            return "here"
        except ValueError:
            for part in brought:
                self.received -= part.end - part.begin
                self._put_back(part)
            raise

    async def _take_block(self, block: _Range, source: "_Source", stream: Stream) -> Answer | Literal["other"]:
        version = self.header.version if self.header else self.expected.request.version
        changes = {"version": version, "begin": block.begin, "end": block.end}
        await stream.send(encode(self.expected.request.model_copy(update=changes)))
        header = Header.parse(decode(await source.message(MAX_HEADER_BYTES)))
        if header.answer != "here":
            return "other" if header.answer == "nothing" and version and header.version else header.answer
        if self.header is None:
            self._begin(header, block)
        elif (header.version, header.total) != (self.header.version, self.header.total):
            raise ValueError("it sends another version than the one that it was asked for")
        while block.begin < block.end:
            left = await source.length(block.end - block.begin)
            while left:
                data = await source.some(left)
                self._buffer[block.begin : block.begin + len(data)] = data
                block.begin += len(data)
                self.received += len(data)
                left -= len(data)
        return "here"

    def _begin(self, header: Header, first: _Range) -> None:
        if not 0 < header.total <= len(self._buffer):
            raise ValueError(f"it offers {header.total} bytes, {len(self._buffer)} would be right")
        self.expected.accept(header)
        self.header = header
        first.end = min(first.end, header.total)
        self._missing = [_Range(first.end, header.total)] if first.end < header.total else []
        self.begun.set()

    def _next_block(self) -> _Range:
        rest = self._missing[-1]
        block = _Range(rest.begin, min(rest.begin + BLOCK_BYTES, rest.end))
        rest.begin = block.end
        if rest.begin == rest.end:
            self._missing.pop()
        return block

    def _put_back(self, block: _Range) -> None:
        if block.begin < block.end:
            self._missing.append(block)


class _Source:
    """Reads from a donor, and notices when it has stalled: by the pauses it makes, so that a slow one may be slow."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._patience = FIRST_ANSWER_SECONDS
        self._longest_pause: float | None = None
        self._marked, self._read_since = time.monotonic(), 0

    async def some(self, at_most: int) -> bytes:
        """The next bytes, at least one."""
        asked = time.monotonic()
        try:
            async with asyncio.timeout(self._patience):
                data = await self._reader.read(at_most)
        except TimeoutError:
            raise TimeoutError(f"it sent nothing for {self._patience:.0f} s") from None
        if not data:
            raise EOFError("it broke off")
        now = time.monotonic()
        # The first answer says nothing of the pace: it took finding the donor as well.
        self._longest_pause = 0.0 if self._longest_pause is None else max(self._longest_pause, now - asked)
        self._patience = min(max(MIN_STALL_SECONDS, 4 * self._longest_pause), MAX_STALL_SECONDS)
        self._read_since += len(data)
        if now - self._marked > SLOW_SECONDS:
            if self._read_since < MESSAGE_BYTES:
                raise TimeoutError(f"it sent {self._read_since} bytes in {now - self._marked:.0f} s")
            self._marked, self._read_since = now, 0
        return data

    async def length(self, limit: int) -> int:
        """The length of the next message that is not empty."""
        while True:
            length = int.from_bytes(await self._exactly(4), "big")
            if length > limit:
                raise ValueError(f"it announces a message of {length} bytes where {limit} are left")
            if length:
                return length
            self._read_since -= 4  # life, but no progress

    async def message(self, limit: int) -> bytes:
        return await self._exactly(await self.length(limit))

    async def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += await self.some(size - len(data))
        return bytes(data)
