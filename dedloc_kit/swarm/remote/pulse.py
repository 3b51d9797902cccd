"""How long it takes to a peer and back."""

import asyncio
import time

from dedloc_kit.swarm.network.service import Service, Stream
from dedloc_kit.swarm.remote.lines import Opener

BEATS = 4
"""Of which the first one also opens the stream."""
MAX_BYTES = 8
MEASURE_SECONDS = 10.0


class Pulse(Service):
    """Sends back what comes, a few times."""

    name = "pulse"

    async def serve(self, peer: str, stream: Stream) -> None:
        async with asyncio.timeout(MEASURE_SECONDS):
            for _ in range(BEATS):
                await stream.send(await stream.receive(MAX_BYTES))
        await stream.closed()


async def round_trip(opener: Opener, peer: str) -> float:
    """Seconds; raises OSError, EOFError or ValueError if the peer does not answer as it should."""
    shortest = MEASURE_SECONDS
    async with asyncio.timeout(MEASURE_SECONDS), opener.open(peer, Pulse) as stream:
        for beat in range(BEATS):
            began = time.perf_counter()
            await stream.send(bytes([1 + beat]))
            await stream.receive(MAX_BYTES)
            if beat:
                shortest = min(shortest, time.perf_counter() - began)
    return shortest
