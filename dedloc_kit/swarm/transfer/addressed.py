"""Content that is asked for by its SHA-256 alone: any peer can give it, and nobody can give anything else."""

import asyncio
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from dedloc_kit.swarm.network.service import Service, Stream, encode
from dedloc_kit.swarm.transfer.download import STREAMS, Downloader, OpenStream
from dedloc_kit.swarm.transfer.places import Place, Places
from dedloc_kit.swarm.transfer.protocol import (
    MAX_REQUEST_BYTES,
    Download,
    Header,
    Request,
    alive_until,
    upload,
)
from dedloc_kit.swarm.transfer.store import FilePart

MAX_UPLOADS = 2
"""Peers that fetch at once: more would only make all of them slow."""
READ_BYTES = 2**20
"""Of a file, for one stream at a time."""
SMALL_SECONDS = 60.0
"""For something small from one donor."""
_DIGEST = re.compile(r"[0-9a-f]{64}")

Find = Callable[[str], FilePart | None]
"""Where the content with this hash lies here, if it does."""


class ContentService(Service):
    """Gives others what is asked for by its hash.

    :param find: asked in threads
    """

    name = "content"

    def __init__(self, *find: Find) -> None:
        self._sources = find
        self._places = Places(MAX_UPLOADS, STREAMS)
        self.line_free = asyncio.Event()
        """Clear while something more important has the line."""
        self.line_free.set()

    async def serve(self, peer: str, stream: Stream) -> None:
        request = await self._question(stream)
        with self._places.place_for(peer, strict=self.line_free.is_set()) as place:
            while True:
                if place:
                    await self._give(request, stream, place)
                else:
                    await stream.send(encode(Header(answer="busy")))
                # The other side ends the stream: p2pd would throw away what is still on its way.
                request = await self._question(stream)

    async def _question(self, stream: Stream) -> Request:
        request = await stream.receive_question(Request, MAX_REQUEST_BYTES)
        if request.what != "content" or not _DIGEST.fullmatch(request.version):
            raise ValueError("it does not ask for content by its hash")
        return request

    async def _give(self, request: Request, stream: Stream, place: Place) -> None:
        place.wait()
        part = await alive_until(stream, asyncio.to_thread(self._find, request.version))
        place.touch()
        if part is None:
            await stream.send(encode(Header(answer="nothing")))
            return
        await stream.send(encode(Header(answer="here", version=request.version, total=part.size)))
        end = min(request.end, part.size)
        for begin in range(request.begin, end, READ_BYTES):
            place.wait()
            block = await alive_until(stream, asyncio.to_thread(part.read, begin, min(begin + READ_BYTES, end)))
            place.touch()
            await upload(stream, memoryview(block), self.line_free, place.touch)

    def _find(self, digest: str) -> FilePart | None:
        return next((part for find in self._sources if (part := find(digest))), None)


@dataclass(frozen=True)
class ExpectedContent:
    """What an honest donor gives for a hash.

    :ivar size: None if only the hash is known
    """

    digest: str
    size: int | None = None

    @property
    def request(self) -> Request:
        return Request(what="content", version=self.digest)

    def accept(self, header: Header) -> None:
        """Raises ValueError if it is not what was asked for."""
        if header.version != self.digest:
            raise ValueError("it offers something else than what was asked for")
        if self.size not in (None, header.total):
            raise ValueError(f"it offers {header.total} bytes where {self.size} would be right")

    def check(self, header: Header, content: memoryview) -> None:
        """Raises ValueError if it has another hash."""
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise ValueError("its hash is another")


async def fetch_small(digest: str, max_bytes: int, donors: Sequence[str], open_stream: OpenStream) -> bytes | None:
    """One content of which only the hash is known, from one donor after the other; None if nobody gives it."""
    # Of one alone: who has sent wrong bytes is then certain, and the next one is honest or not by itself.
    for donor in random.sample(donors, len(donors)):
        download = Download(ExpectedContent(digest), memoryview(bytearray(max_bytes)))
        with suppress(TimeoutError):
            async with asyncio.timeout(SMALL_SECONDS):
                if await Downloader(download, [donor], open_stream).complete():
                    return bytes(download.content)
    return None
