"""The donor's side of a download: what it can give, to how many at once, and how long it keeps a snapshot for them."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from hivemind.p2p.p2p_daemon_bindings.datastructures import StreamInfo

from dedloc_kit.swarm.network.node import kept_alive
from dedloc_kit.swarm.transfer.contents import Offer, RecentAverage, StateLayout
from dedloc_kit.swarm.transfer.download import STREAMS
from dedloc_kit.swarm.transfer.places import Place, Places
from dedloc_kit.swarm.transfer.protocol import Header, Request, alive_until, encode, receive_request, send, upload
from dedloc_kit.swarm.transfer.questions import Answering

KEPT_AVERAGES = 4
MAX_UPLOADS = 2
"""Peers that download the state at once, and as many an average: more would only make all of them slow."""
LINGER_SECONDS = 15.0
"""How long a snapshot stays after its last use: for the next newcomer, or for one whose donor breaks off. There are
never more than one for each place, and the newest."""

_log = logging.getLogger(__name__)


class Giving:
    """Serves downloads.

    :param willing: whether others may download now
    :param newest_state: the newest state if it is another version than the given one, otherwise None
    :param layout: of the state
    """

    def __init__(
        self,
        willing: Callable[[], bool],
        newest_state: Callable[[str], Awaitable[Offer | None]],
        layout: StateLayout,
    ) -> None:
        self._willing, self._newest_state = willing, newest_state
        self._questions = Answering(layout, lambda version: self._find(Request(what="state", version=version)))
        self.line_free = asyncio.Event()
        """Clear while something more important has the line."""
        self.line_free.set()
        self._averages: deque[RecentAverage] = deque(maxlen=KEPT_AVERAGES)
        self._offers: dict[tuple[str, str], Offer] = {}
        self._newest = ""
        self._asking = asyncio.Lock()
        self._places = {what: Places(MAX_UPLOADS, STREAMS) for what in ("state", "average")}

    def keep(self, average: RecentAverage) -> None:
        """Keep the average of a complete round for those who missed it."""
        self._averages.append(average)

    @kept_alive
    async def serve(self, stream: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send another peer the blocks that it asks for."""
        try:
            request, peer = await receive_request(reader), stream.peer_id.to_base58()
            while request.what == "sketch":
                await send(writer, encode(await alive_until(writer, self._questions.answer(peer, request))))
                request = await receive_request(reader)
            with self._places[request.what].take(peer, strict=self.line_free.is_set()) as place:
                while True:
                    if place:
                        await self._give(request, writer, place)
                    else:
                        await send(writer, encode(Header(answer="busy")))
                    # The other side ends the stream: p2pd would throw away what is still on its way.
                    request = await receive_request(reader)
        except (OSError, EOFError, ValueError) as error:  # how streams end
            _log.debug("a download by %s ended: %r", stream.peer_id, error)
            writer.transport.abort()
        finally:
            writer.close()

    async def _give(self, request: Request, writer: asyncio.StreamWriter, place: Place) -> None:
        place.wait()
        offer = await alive_until(writer, self._find(request))
        if offer is None or request.version not in ("", offer.version):
            other = offer.version if offer else ""
            await send(writer, encode(Header(answer="nothing", version=other)))
            return
        metadata = b"" if request.version else offer.metadata
        header = Header(answer="here", version=offer.version, total=len(offer.content), metadata=metadata)
        place.begin(offer.version)
        offer.users += 1
        try:
            await send(writer, encode(header))
            await upload(writer, offer.content[request.begin : request.end], self.line_free, place.touch)
        finally:
            offer.users -= 1
            self._forget_later(offer)

    async def _find(self, request: Request) -> Offer | None:
        """What was asked for, or the newest state where that version is gone; None if there is neither."""
        if not self._willing():
            return None
        key = (request.what, request.after if request.what == "average" else request.version)
        if key in self._offers:
            return self._offers[key]
        if request.what == "state":
            return await self._newest_offer()
        average = next((average for average in self._averages if average.after == request.after), None)
        return None if average is None else self._hold(key, average.offer())

    async def _newest_offer(self) -> Offer | None:
        async with self._asking:
            held = self._offers.get(("state", self._newest))
            newer = await self._newest_state(held.version if held else "")
            if newer is None:
                return held
            self._newest = newer.version
            return self._hold(("state", newer.version), newer)

    def _hold(self, key: tuple[str, str], offer: Offer) -> Offer:
        like = [other for other in self._offers if other[0] == key[0]]
        unused = [other for other in like if not self._offers[other].users]
        for other in unused[: max(0, len(like) - MAX_UPLOADS)]:
            del self._offers[other]
        self._offers[key] = offer
        self._forget_later(offer)
        return offer

    def _forget_later(self, offer: Offer) -> None:
        loop = asyncio.get_running_loop()
        offer.last_used = loop.time()
        loop.call_later(LINGER_SECONDS, self._forget_unused)

    def _forget_unused(self) -> None:
        until = asyncio.get_running_loop().time() - LINGER_SECONDS
        for key, offer in tuple(self._offers.items()):
            if offer.users == 0 and offer.last_used <= until:
                del self._offers[key]
