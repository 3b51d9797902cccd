"""Serves a peer that comes through another one as if it had come directly."""

import asyncio
from collections.abc import Sequence

from hivemind.p2p import PeerID

from dedloc_kit.swarm.network.bounds import AtATime
from dedloc_kit.swarm.network.service import Service, Stream
from dedloc_kit.swarm.remote.greeting import MAX_GREETING_BYTES, Greeter, as_long_as_admitted
from dedloc_kit.swarm.remote.tls import Certificate, secured

GREETING_SECONDS = 10.0
"""For each end to say who it is and to prove it."""
STREAMS_AT_A_TIME = (12, 128)
"""Which one caller may have open, through whomever, and all together."""


class ForwardedService(Service):
    """The end of a forwarded stream.

    :param services: which may be called so
    """

    name = "forwarded"

    def __init__(self, greeter: Greeter, services: Sequence[Service]) -> None:
        self._greeter = greeter
        self._services = {service.name: service for service in services}
        self._places = AtATime(*STREAMS_AT_A_TIME)

    async def serve(self, peer: str, stream: Stream) -> None:
        async with asyncio.timeout(GREETING_SECONDS):
            caller = self._greeter.read(await stream.receive(MAX_GREETING_BYTES))
        service = self._services.get(caller.service)
        if service is None:
            raise ValueError("it calls for a service that there is not")
        async with asyncio.timeout(GREETING_SECONDS):
            mine = Certificate()
            await stream.send(self._greeter.write(caller.peer, service.name, mine.der))
            inner = await secured(stream, mine, caller.certificate, server_side=True)
        # Not before: whoever has seen a caller's greeting may send it again, and would take its places.
        with self._places.place(PeerID.from_base58(caller.peer)):
            with as_long_as_admitted(self._greeter.gate, caller.peer):
                await service.serve(caller.peer, inner)
            inner.close()
