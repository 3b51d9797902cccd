"""Home lines in a time of their own: what peers send each other takes as long as it would, and nobody waits for it.

    time = SimulatedTime()
    with time.running() as runner:
        runner.run(meet(Lines(time, rates)))

The clock leaps to the next thing that is to happen as soon as nothing is left to do, so what the machine takes for its
arithmetic takes none of this time, and nobody is taken for dead because the machine is slow.
"""

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

from dedloc_kit.swarm.network.service import CONNECT_SECONDS, SEND_SECONDS, Stream

DELAY_SECONDS = 0.03
"""From one peer to another."""
PACKET_BYTES = 1400
"""What is no longer than this finds its way between the packets of others."""
MOST_BYTES = 70_000
"""Of a message; what takes more stands for several."""
PIECE_BYTES = 2**16
"""That go before those of others have their turn."""
BUFFER_BYTES = 2**16
"""That may wait in a stream before its sender has to."""


class SimulatedTime:
    """The seconds of an event loop, and of `time.monotonic` meanwhile."""

    def __init__(self) -> None:
        self.now = 1000.0

    @contextmanager
    def running(self) -> Iterator[asyncio.Runner]:
        def loop() -> asyncio.AbstractEventLoop:
            return asyncio.SelectorEventLoop(_Leaping(self))

        with patch.object(time, "monotonic", lambda: self.now), asyncio.Runner(loop_factory=loop) as runner:
            yield runner


class _Leaping(selectors.SelectSelector):
    """Waits for nothing."""

    def __init__(self, time: SimulatedTime) -> None:
        super().__init__()
        self._time = time

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nobody has anything left to do or to wait for")
        self._time.now += max(0.0, timeout)
        return []


class Lines:
    """A line for each peer, as fast up as down.

    :param rates: bytes per second of each
    :param size_of: how many bytes a message takes on the way; as many as it has, unless it stands for a larger one
    :param wire: what makes the ends of streams
    :ivar seconds: of the processor, for all that is only pretended here
    """

    def __init__(
        self,
        time: SimulatedTime,
        rates: Sequence[float],
        size_of: Callable[[bytes], int] = len,
        wire: "type[Wire] | None" = None,
    ) -> None:
        self.time, self.size_of, self._wire = time, size_of, wire or Wire
        self.up, self.down = ([_Way(self, rate) for rate in rates] for _ in range(2))
        self.silent: set[int] = set()
        self.seconds, self._arrival = 0.0, 0.0
        self.sent, self.messages, self.ends = ([0] * len(rates) for _ in range(3))
        """Of each peer: bytes, messages, and ends of streams."""

    async def connect(self, me: int, other: int) -> tuple["Wire", "Wire"]:
        """Both ends of a new stream; raises TimeoutError if the other one is silent."""
        if other in self.silent:
            await asyncio.sleep(CONNECT_SECONDS)
            raise TimeoutError("it does not answer")
        await asyncio.sleep(2 * DELAY_SECONDS)
        here, there = self._wire(self, me, other), self._wire(self, other, me)
        here.far, there.far = there, here
        for peer in (me, other):
            self.ends[peer] += 1
        return here, there

    def carry(self, wire: "Wire", message: bytes | None, size: int) -> "Parcel":
        """Up the sender's line and down the receiver's; None is the end of the stream."""
        wire.far.begins(self.time.now + DELAY_SECONDS)
        parcel = Parcel()

        def up(piece: int, last: bool) -> None:
            wire.left(piece)
            self._arrival = max(self.time.now + DELAY_SECONDS, self._arrival + 1e-9)  # timers have no order
            asyncio.get_running_loop().call_at(self._arrival, arrive, piece, last)

        def arrive(piece: int, last: bool) -> None:
            self.down[wire.other].put(wire.me, piece, parcel, partial(down, last))

        def down(last: bool) -> None:
            if last:
                wire.far.arrived(None if parcel.dropped else message, end=message is None)

        for begin in range(0, size, PIECE_BYTES):
            piece = min(PIECE_BYTES, size - begin)
            self.up[wire.me].put(wire.other, piece, parcel, partial(up, piece, begin + piece == size))
        return parcel


@dataclass
class Parcel:
    """A message on its way. Of one that stands for many smaller ones the rest need not go."""

    dropped: bool = False


class _Way:
    """One direction of a line. What is on its way from or to several peers takes turns."""

    def __init__(self, lines: Lines, rate: float) -> None:
        self._lines, self._rate = lines, rate
        self._waiting: dict[int, deque[tuple[int, Parcel, Callable[[], None]]]] = {}
        self._first: deque[int] = deque()
        self._turns: deque[int] = deque()
        self._busy = False

    def put(self, peer: int, size: int, parcel: Parcel, then: Callable[[], None]) -> None:
        began = time.process_time()
        if peer in self._waiting:
            self._waiting[peer].append((size, parcel, then))
        else:
            self._waiting[peer] = deque([(size, parcel, then)])
            (self._first if size <= PACKET_BYTES else self._turns).append(peer)
        if not self._busy:
            self._next()
        self._lines.seconds += time.process_time() - began

    def _next(self) -> None:
        turns = self._first or self._turns
        self._busy = bool(turns)
        if not turns:
            return
        peer = turns.popleft()
        through: list[Callable[[], None]] = []
        waiting, total = self._waiting[peer], 0
        while waiting and (not through or total + waiting[0][0] <= PIECE_BYTES):
            size, parcel, then = waiting.popleft()
            total += 0 if parcel.dropped else size
            through.append(then)
        if waiting:
            self._turns.append(peer)
        else:
            del self._waiting[peer]
        asyncio.get_running_loop().call_later(total / self._rate, self._through, through)

    def _through(self, through: list[Callable[[], None]]) -> None:
        began = time.process_time()
        for then in through:
            then()
        self._next()
        self._lines.seconds += time.process_time() - began


class Wire(Stream):
    """One end of a stream."""

    far: "Wire"

    def __init__(self, lines: Lines, me: int, other: int) -> None:
        self.lines, self.me, self.other = lines, me, other
        self._inbox: deque[bytes | None] = deque()
        self._coming = 0
        self._heard, self._silence = lines.time.now, 0.0
        self._waiting = 0
        self._closed = self._broken = False
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self.writer: Any = self
        self.transport = self

    @property
    def _cut(self) -> bool:
        return not self.lines.silent.isdisjoint((self.me, self.other))

    # Of messages that share a line each gets its part all the time: what is on its way is heard.

    @property
    def heard(self) -> float:  # type: ignore[override]
        return self.lines.time.now if self.arriving else self._heard

    @property
    def arriving(self) -> bool:  # type: ignore[override]
        return bool(self._coming) and not self._cut

    def begins(self, moment: float) -> None:
        """A message begins to come at this moment."""
        if not self._coming:
            self._silence = max(self._silence, moment - self._heard)
        self._coming += 1

    async def send(self, content: bytes | memoryview) -> None:
        if self._broken or self._closed:
            raise ConnectionResetError("the stream is closed")
        message = bytes(content)
        size = self.lines.size_of(message) + 4
        self._waiting += size
        self.lines.sent[self.me] += size
        self.lines.messages[self.me] += 1
        parcel = Parcel() if self._cut else self.lines.carry(self, message, size)
        if self._waiting > BUFFER_BYTES:
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    while self._waiting > BUFFER_BYTES and not self._broken:
                        self._room.clear()
                        await self._room.wait()
            except asyncio.CancelledError:
                parcel.dropped = size > MOST_BYTES
                raise
        if self._broken:
            raise ConnectionResetError("the stream is closed")

    def left(self, size: int) -> None:
        """So much of what waited is on its way."""
        self._waiting -= size
        self._room.set()

    def arrived(self, message: bytes | None, *, end: bool) -> None:
        self._coming -= 1
        if not self._cut and (message is not None or end):
            self._heard = self.lines.time.now
            self._inbox.append(message)
            self._news.set()

    async def receive(self, limit: int) -> bytes:
        while not self._inbox:
            if self._broken:
                raise ConnectionResetError("the stream is broken")
            self._news.clear()
            await self._news.wait()
        message, self.silence, self._silence = self._inbox[0], self._silence, 0.0
        if message is None:
            raise asyncio.IncompleteReadError(b"", 4)
        if len(message) > limit:
            raise ValueError(f"a message of {len(message)} bytes is announced where at most {limit} are right")
        self._inbox.popleft()
        return message

    async def closed(self, seconds: float = CONNECT_SECONDS) -> None:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self.receive(2**32)
        except (OSError, EOFError):
            pass

    def is_closing(self) -> bool:
        return self._closed or self._broken

    def close(self) -> None:
        if not self.is_closing():
            self._closed = True
            if not self._cut:
                self.lines.carry(self, None, 40)
        self.left(0)

    def abort(self) -> None:
        """The stream breaks, at both ends."""
        self._broken = self._closed = True
        self._inbox.clear()
        self._news.set()
        self._room.set()
        if not self._cut and not self.far._broken:
            self.far.abort()
