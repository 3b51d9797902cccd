"""Two peers that nobody can dial meet at one that both have dialled: it joins a stream of each.

It sees only what TLS lets it see. What it gives away is bounded: streams, and bytes a second.
"""

import asyncio
import time
from dataclasses import dataclass

from hivemind.p2p import PeerID

from dedloc_kit.records.record import PeerId, Record
from dedloc_kit.swarm.network.bounds import AtATime
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.service import SEND_SECONDS, Endpoint, Service, Stream
from dedloc_kit.swarm.remote.forwarded import ForwardedService
from dedloc_kit.swarm.remote.greeting import as_long_as_admitted

_PIECE_BYTES = 2**16
_BURST_SECONDS = 1.0
"""What a rate allows for so long may come at once."""


@dataclass(frozen=True)
class Limits:
    """What a peer forwards at most.

    :ivar streams_each: of one caller at a time
    :ivar bytes_each: a second, both ways, of all streams of one caller
    """

    streams_each: int = 12
    streams: int = 128
    bytes_each: int = 4 * 2**20
    bytes: int = 16 * 2**20


class Wanted(Record):
    """To whom a stream is to be forwarded."""

    peer: PeerId


class Rate:
    """So many bytes a second: whoever has more waits."""

    def __init__(self, bytes_a_second: int) -> None:
        self._bytes_a_second = bytes_a_second
        self._paid_until = 0.0

    async def spend(self, count: int) -> None:
        now = time.monotonic()
        self._paid_until = max(self._paid_until, now - _BURST_SECONDS) + count / self._bytes_a_second
        if self._paid_until > now:
            await asyncio.sleep(self._paid_until - now)

    @property
    def unused(self) -> bool:
        """Is there nothing left to remember?"""
        return self._paid_until <= time.monotonic() - _BURST_SECONDS


class ForwardingService(Service):
    """Forwards streams of peers that may take part to others that are connected to this one; a peer that wants to
    forward nothing does not offer it."""

    name = "forwarding"

    def __init__(self, endpoint: Endpoint, gate: Gate, limits: Limits | None = None) -> None:
        self._endpoint, self._gate, self._limits = endpoint, gate, limits or Limits()
        self._places = AtATime(self._limits.streams_each, self._limits.streams)
        self._rate = Rate(self._limits.bytes)
        self._rates: dict[str, Rate] = {}

    async def serve(self, peer: str, stream: Stream) -> None:
        wanted = (await stream.receive_question(Wanted)).peer
        with self._places.place(PeerID.from_base58(peer)):
            # Nobody is dialled for a caller.
            if wanted not in {str(connected.peer_id) for connected in await self._endpoint.p2p.list_peers()}:
                raise ValueError("the peer that is wanted is not connected")
            async with self._endpoint.open(wanted, ForwardedService) as onward:
                with as_long_as_admitted(self._gate, wanted):
                    await self._join(self._rate_of(peer), stream, onward)

    def _rate_of(self, peer: str) -> Rate:
        """Of all streams of a peer; it is kept until it is of no use, or who calls anew would have a new one."""
        self._rates = {peer: rate for peer, rate in self._rates.items() if not rate.unused}
        return self._rates.setdefault(peer, Rate(self._limits.bytes_each))

    async def _join(self, rate: Rate, one: Stream, other: Stream) -> None:
        """Until either end closes or takes nothing any more; both are closed then."""
        copying = [asyncio.create_task(self._copy(rate, *way)) for way in ((one, other), (other, one))]
        try:
            await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in copying:
                task.cancel()
            await asyncio.gather(*copying, return_exceptions=True)

    async def _copy(self, rate: Rate, source: Stream, target: Stream) -> None:
        while piece := await source.reader.read(_PIECE_BYTES):
            await rate.spend(len(piece))
            await self._rate.spend(len(piece))
            target.writer.write(piece)
            async with asyncio.timeout(SEND_SECONDS):
                await target.writer.drain()
