"""The streams of an all-reduce: messages in order, when something was heard last, and who is gone."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from dedloc_kit.swarm.averaging.streams.messages import Says
from dedloc_kit.swarm.network.service import Stream

Message = bytes | Callable[[], bytes]
"""Or what makes it when its turn has come."""


class Link:
    """A stream to or from another member."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._turn = stream, asyncio.Lock()
        self._posts: set[asyncio.Task[None]] = set()
        self.heard: float | None = None
        """When the last message came; none until the first one."""
        self._before = 0
        """The kind of the last message that was measured."""
        self._averages: asyncio.Task[None] | None = None
        """What sends averages here."""

    async def send(self, message: bytes) -> None:
        """Raises OSError if the other side is gone or does not take it."""
        async with self._turn:
            if self._stream.writer.is_closing():
                raise ConnectionError("the stream is closed")
            await self._stream.send(message)

    def post(self, *messages: Message) -> None:
        """Send these after what is under way; nobody waits for it, and it does not matter if they do not come."""

        async def send() -> None:
            with suppress(OSError):
                for message in messages:
                    await self.send(message if isinstance(message, bytes) else message())

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

    def count_from(self, moment: float) -> None:
        """Silence before then does not count, if there was anything to hear."""
        if self.heard is not None:
            self.heard = max(self.heard, moment)

    def forgive(self, seconds: float) -> None:
        """So long nobody has listened."""
        if self.heard is not None:
            self.heard += seconds

    def silent(self) -> float:
        """Seconds since anything came, if only a piece of a message; 0 before the first message."""
        return 0.0 if self.heard is None else time.monotonic() - max(self.heard, self._stream.heard)

    def arriving(self, seconds: float) -> bool:
        """Is a message on its way here, of which something has come within so many seconds?"""
        return self._stream.arriving and time.monotonic() - self._stream.heard <= seconds

    def measure(self, says: Says) -> float:
        """A message of this kind has come: seconds in which nothing came since the one before, if that was of the same
        kind, else 0."""
        kind, self._before = self._before, says
        return self._stream.silence if kind == says else 0.0

    def measure_anew(self) -> None:
        """What comes next was not to be expected sooner."""
        self._before = 0

    def send_averages(self, sending: "asyncio.Task[None]") -> None:
        """This sends averages here, in place of what did before."""
        self.stop_averages()
        self._averages = sending

    def stop_averages(self) -> None:
        if self._averages is not None:
            self._averages.cancel()

    async def done_with_averages(self, listening: "asyncio.Task[None]") -> None:
        """They are sent, or nobody is there any more."""
        if self._averages is not None:
            await asyncio.wait({self._averages, listening}, return_when=asyncio.FIRST_COMPLETED)

    async def flushed(self) -> None:
        """What was posted is sent."""
        if self._posts:
            await asyncio.wait(set(self._posts))


class Links:
    """The streams of one peer in a round, by member, and who is gone.

    :ivar up: to reducers
    :ivar down: from members, if this peer reduces
    :ivar lost: members that will not send any more
    :ivar dead: reducers from which nothing more comes
    """

    def __init__(self) -> None:
        self.up: dict[int, Link] = {}
        self.down: dict[int, Link] = {}
        self.lost: set[int] = set()
        self.dead: set[int] = set()

    def forgive(self, seconds: float) -> None:
        """This process stood still for so long; what came meanwhile is yet to be read."""
        for link in (*self.up.values(), *self.down.values()):
            link.forgive(seconds)

    def measure_anew(self) -> None:
        """As `Link.measure_anew`."""
        for link in (*self.up.values(), *self.down.values()):
            link.measure_anew()

    def count_from(self, moment: float) -> None:
        """As `Link.count_from`, of those that are not known to be gone."""
        for member, link in (*self.up.items(), *self.down.items()):
            if member not in self.dead:
                link.count_from(moment)

    def of(self, member: int) -> list[Link]:
        """Those to and from this member that there are."""
        return [link for link in (self.up.get(member), self.down.get(member)) if link is not None]

    def begun(self, member: int) -> bool:
        """Was anything ever heard of it?"""
        return any(link.heard is not None for link in self.of(member))

    def silent(self, member: int) -> float:
        """Seconds since anything was heard of it, on whichever stream; 0 if nothing ever was."""
        return min((link.silent() for link in self.of(member) if link.heard is not None), default=0.0)
