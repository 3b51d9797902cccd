"""Server-sent events: one message to all viewers, and none of them can hold up the others."""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dedloc_kit.dashboard.http.fair_pool import Shares
from dedloc_kit.dashboard.http.limits import address_of

KEEP_ALIVE_SECONDS = 15.0
MAX_VIEWERS = 500
BACKLOG = 64
"""Messages that wait for one viewer before it is dropped."""


class Viewers:
    """Those who watch; lives in the server's event loop.

    A newcomer waits until it is welcomed with the full state: what is pushed only says what has changed. Once all
    places are taken it is given that of a viewer whose address holds more of them.
    """

    def __init__(self, arrived: asyncio.Event) -> None:
        """`arrived` is set when somebody waits for a welcome."""
        self._arrived = arrived
        self._streams: dict[asyncio.Queue[bytes], asyncio.Task[None]] = {}
        self._shares = Shares[asyncio.Queue[bytes]](MAX_VIEWERS)
        self._newcomers: set[asyncio.Queue[bytes]] = set()
        self._closed = False

    @property
    def count(self) -> int:
        return len(self._streams)

    def has_room(self, address: str) -> bool:
        """Whether one more from there can watch."""
        return not self._closed and self._shares.has_room(address)

    def push(self, message: bytes) -> None:
        """Hand a message to every welcomed viewer; one whose backlog is full is dropped."""
        for queue in list(self._streams):
            if queue in self._newcomers:
                continue
            try:
                queue.put_nowait(message)
            except asyncio.QueueFull:
                self._drop(queue)

    def welcome(self, message: bytes) -> None:
        """Hand a message to those who have come since the last welcome."""
        for queue in self._newcomers:
            queue.put_nowait(message)
        self._newcomers.clear()

    def close(self) -> None:
        """End all streams in good order and take no new viewers."""
        self._closed = True
        for queue in self._streams:
            while not queue.empty():
                queue.get_nowait()
            queue.put_nowait(b"")

    async def serve(self, address: str, receive: Receive, send: Send) -> None:
        """Write to one viewer until it leaves, is dropped, or everything ends."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(BACKLOG)
        writing = asyncio.create_task(_write(queue, send))
        leaving = asyncio.create_task(_until_gone(receive))
        self._streams[queue] = writing
        self._newcomers.add(queue)
        first = self._shares.add(address, queue)
        if first is not None:
            self._drop(first)
        self._arrived.set()
        try:
            if self._closed:
                queue.put_nowait(b"")
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._drop(queue)
            leaving.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    def _drop(self, queue: asyncio.Queue[bytes]) -> None:
        writing = self._streams.pop(queue, None)
        if writing is not None:
            writing.cancel()
        self._newcomers.discard(queue)
        self._shares.discard(queue)


class EventStream(Response):
    """The answer to one viewer: headers, then whatever `viewers` has for it."""

    def __init__(self, viewers: Viewers) -> None:
        # `no-transform` and the last header keep proxies from holding events back.
        headers = {"Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type="text/event-stream")
        del self.headers["content-length"]
        self._viewers = viewers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._viewers.serve(address_of(scope), receive, send)


async def _write(queue: asyncio.Queue[bytes], send: Send) -> None:
    while True:
        try:
            # Not wait_for: before Python 3.12 it forgets that it was cancelled if a message comes at the same moment.
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                message = await queue.get()
        except TimeoutError:
            # The comment keeps proxies from closing the connection, the event tells the page that we are there.
            message = b": keep-alive\nevent: alive\ndata: {}\n\n"
        await send({"type": "http.response.body", "body": message, "more_body": bool(message)})
        if not message:
            return


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
