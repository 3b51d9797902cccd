"""One stream of an all-reduce: messages in order, and when something was heard last."""

import asyncio
import time
from contextlib import suppress

from dedloc_kit.swarm.averaging.messages import Says
from dedloc_kit.swarm.network.service import Stream


class Link:
    """A stream to or from another member."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._turn = stream, asyncio.Lock()
        self._posts: set[asyncio.Task[None]] = set()
        self.heard: float | None = None
        """When the last message came; none until the first one."""
        self.before: tuple[int, float] = (0, 0.0)
        """The kind of the last message that was measured, and when it came."""
        self.busy: asyncio.Task[None] | None = None
        """What sends averages here."""

    async def send(self, message: bytes) -> None:
        """Raises OSError if the other side is gone or does not take it."""
        async with self._turn:
            if self._stream.writer.is_closing():
                raise ConnectionError("the stream is closed")
            await self._stream.send(message)

    def post(self, *messages: bytes) -> None:
        """Send these after what is under way; nobody waits for it, and it does not matter if they do not come."""

        async def send() -> None:
            with suppress(OSError):
                for message in messages:
                    await self.send(message)

        task = asyncio.create_task(send())
        self._posts.add(task)
        task.add_done_callback(self._posts.discard)

    def here(self) -> None:
        """Say that this peer is still here, unless it says something anyhow."""
        if not self._posts:
            self.post(bytes([Says.HERE]))

    async def receive(self, limit: int) -> bytes:
        """As `Stream.receive`."""
        message = await self._stream.receive(limit)
        self.heard = time.monotonic()
        return message

    def silent(self) -> float:
        """Seconds since the last message; 0 before the first one."""
        return 0.0 if self.heard is None else time.monotonic() - self.heard

    async def flushed(self) -> None:
        """What was posted is sent."""
        if self._posts:
            await asyncio.wait(set(self._posts))
