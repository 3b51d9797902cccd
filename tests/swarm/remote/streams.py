"""A pair of streams, what is written into one is read from the other."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dedloc_kit.swarm.network.service import Stream


@asynccontextmanager
async def stream_pair() -> AsyncIterator[tuple[Stream, Stream]]:
    one, other = [Stream(*await asyncio.open_connection(sock=end)) for end in socket.socketpair()]
    try:
        yield one, other
    finally:
        one.close()
        other.close()
