"""A stream of an all-reduce: messages in order, and when something was heard last."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.network.service import Stream

MAX_POSTS = 1024
"""Messages that wait to be sent to a member. More wait only for one that asks and does not read."""


class Link:
    """A stream to or from another member."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._turn = stream, asyncio.Lock()
        self._posts: set[asyncio.Task[None]] = set()
        self.heard: float | None = None
        """When the last message came; none until the first one."""
        self._before = 0
        """The kind of the last message that was measured."""
        self._giving: asyncio.Task[None] | None = None

    async def send(self, message: bytes) -> None:
        """Raises OSError if the other side is gone or does not take it."""
        async with self._turn:
            if self._stream.writer.is_closing():
                raise ConnectionError("the stream is closed")
            await self._stream.send(message)

    def post(self, message: bytes) -> None:
        """Send this after what is under way; nobody waits for it, and it does not matter if it does not come."""
        if len(self._posts) >= MAX_POSTS:
            self._stream.writer.transport.abort()  # the other side asks, and reads no answers
            return
        self._start(self._send_all((message,)))

    def give(self, *messages: Callable[[], bytes]) -> None:
        """Make and send these one after the other, unless others are on their way."""
        if self._giving is None or self._giving.done():
            self._giving = self._start(self._send_all(messages))

    def _start(self, sending: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(sending)
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)
        return task

    async def _send_all(self, messages: "Sequence[bytes | Callable[[], bytes]]") -> None:
        with suppress(OSError):
            for message in messages:
                await self.send(message if isinstance(message, bytes) else message())

    def here(self) -> None:
        """Say that this peer is still here, unless it says something anyhow."""
        if not self._posts:
            self.post(bytes([Kind.HERE]))

    async def receive(self, limit: int) -> bytes:
        """As `Stream.receive`."""
        message = await self._stream.receive(limit)
        self.heard = time.monotonic()
        return message

    def forgive(self, seconds: float) -> None:
        """So long nobody has listened."""
        if self.heard is not None:
            self.heard += seconds

    def silent(self) -> float:
        """Seconds since anything came, if only a piece of a message; 0 before the first message."""
        return 0.0 if self.heard is None else time.monotonic() - max(self.heard, self._stream.heard)

    def measure(self, kind: Kind) -> float:
        """A message of this kind has come: seconds in which nothing came since the one before, if that was of the same
        kind, else 0."""
        before, self._before = self._before, kind
        return self._stream.silence if before == kind else 0.0

    async def flushed(self) -> None:
        """What was posted is sent."""
        if self._posts:
            await asyncio.wait(set(self._posts))
