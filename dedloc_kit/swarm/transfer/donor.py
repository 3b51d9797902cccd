"""The donor's side of a download: what it can give, to how many at once, and how long it keeps a snapshot for them."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import torch

from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.transfer.contents import Content, RecentAverage, StateLayout, StoredAverage, snapshot
from dedloc_kit.swarm.transfer.download import STREAMS
from dedloc_kit.swarm.transfer.places import Place, Places
from dedloc_kit.swarm.transfer.protocol import MAX_REQUEST_BYTES, Header, Request, alive_until, upload
from dedloc_kit.swarm.transfer.questions import Answering

KEPT_AVERAGES = 4
MOST_AVERAGES, AVERAGE_BYTES = 24, 2**26
"""More than those four are kept as long as they are no more than this, and have no more bytes in all."""
MAX_UPLOADS = 2
"""Peers that download the state at once, and as many an average: more would only make all of them slow."""
COPY_SECONDS = 60.0
"""For a copy of the state by a busy process."""
LINGER_SECONDS = 15.0
"""How long a snapshot stays after its last use: for the next newcomer, or for one whose donor breaks off. There are
never more than one for each place, and the newest."""


class Donor:
    """Serves downloads.

    :param newest_state: metadata and packed tensors of the newest state if it is another version than the given one
    :param layout: of the state
    """

    def __init__(
        self,
        newest_state: Callable[[str], Awaitable[tuple[dict[str, Any], torch.Tensor] | None]],
        layout: StateLayout,
    ) -> None:
        self._willing = False
        self._newest_state = newest_state
        self._questions = Answering(layout, lambda version: self._find(Request(what="state", version=version)))
        self.line_free = asyncio.Event()
        """Clear while something more important has the line."""
        self.line_free.set()
        self._averages: deque[RecentAverage | StoredAverage] = deque(maxlen=MOST_AVERAGES)
        self._contents: dict[tuple[str, str], Content] = {}
        self._newest = ""
        self._asking = asyncio.Lock()
        self._places = {what: Places(MAX_UPLOADS, STREAMS) for what in ("state", "average")}

    def share(self, on: bool) -> None:
        """Whether others may download from now on; at first they may not."""
        self._willing = on

    def keep(self, average: RecentAverage | StoredAverage) -> None:
        """Keep the average of a complete round for those who missed it."""
        self._averages.append(average)
        while len(self._averages) > KEPT_AVERAGES and sum(each.size for each in self._averages) > AVERAGE_BYTES:
            self._averages.popleft()

    def average_after(self, round: str) -> RecentAverage | StoredAverage | None:
        """The average that followed this round, if it is still kept."""
        return next((average for average in self._averages if average.after == round), None)

    async def serve(self, peer: str, stream: Stream) -> None:
        """Send another peer the blocks that it asks for."""
        request = await stream.receive_question(Request, MAX_REQUEST_BYTES)
        while request.what == "sketch":
            await stream.send(encode(await alive_until(stream, self._questions.answer(peer, request))))
            request = await stream.receive_question(Request, MAX_REQUEST_BYTES)
        if request.what not in self._places:
            raise ValueError("another service gives that")
        with self._places[request.what].place_for(peer, strict=self.line_free.is_set()) as place:
            while True:
                if place:
                    await self._give(request, stream, place)
                else:
                    await stream.send(encode(Header(answer="busy")))
                # The other side ends the stream: p2pd would throw away what is still on its way.
                request = await stream.receive_question(Request, MAX_REQUEST_BYTES)

    async def _give(self, request: Request, stream: Stream, place: Place) -> None:
        place.wait()
        content = await alive_until(stream, self._find(request))
        if content is None or request.version not in ("", content.version):
            other = content.version if content else ""
            await stream.send(encode(Header(answer="nothing", version=other)))
            return
        metadata = b"" if request.version else content.metadata
        header = Header(answer="here", version=content.version, total=len(content.data), metadata=metadata)
        place.begin(content.version)
        try:
            with content.in_use():
                await stream.send(encode(header))
                await upload(stream, content.data[request.begin : request.end], self.line_free, place.touch)
        finally:
            self._forget_later(content)

    async def _find(self, request: Request) -> Content | None:
        """What was asked for, or the newest state where that version is gone; None if there is neither."""
        if not self._willing:
            return None
        key = (request.what, request.after if request.what == "average" else request.version)
        if key in self._contents:
            return self._contents[key]
        if request.what == "state":
            return await self._newest_content()
        average = self.average_after(request.after)
        return None if average is None else self._hold(key, average.content())

    async def _newest_content(self) -> Content | None:
        async with self._asking:
            held = self._contents.get(("state", self._newest))
            async with asyncio.timeout(COPY_SECONDS):
                newer = await self._newest_state(held.version if held else "")
            if newer is None:
                return held
            content = snapshot(*newer)
            self._newest = content.version
            return self._hold(("state", content.version), content)

    def _hold(self, key: tuple[str, str], content: Content) -> Content:
        like = [other for other in self._contents if other[0] == key[0]]
        unused = [other for other in like if not self._contents[other].users]
        for other in unused[: max(0, len(like) - MAX_UPLOADS)]:
            del self._contents[other]
        self._contents[key] = content
        self._forget_later(content)
        return content

    def _forget_later(self, content: Content) -> None:
        loop = asyncio.get_running_loop()
        content.touch(loop.time())
        loop.call_later(LINGER_SECONDS, self._forget_unused)

    def _forget_unused(self) -> None:
        until = asyncio.get_running_loop().time() - LINGER_SECONDS
        for key, content in tuple(self._contents.items()):
            if content.users == 0 and content.last_used <= until:
                del self._contents[key]
