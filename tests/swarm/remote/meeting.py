"""Two peers that only make outgoing connections, each with a real node on loopback, and two that both are connected to
and that forward."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from dedloc_kit.swarm.network.service import Endpoint, Service, Stream
from dedloc_kit.swarm.remote.calling import Caller
from dedloc_kit.swarm.remote.forwarded import ForwardedService
from dedloc_kit.swarm.remote.forwarding import ForwardingService, Limits
from dedloc_kit.swarm.remote.greeting import Greeter
from tests.hang import HANG
from tests.swarm.network.test_service import Place

T = TypeVar("T")
QUICK = {"check_if_identity_free": False}
OUTGOING = {"no_listen": True, "host_maddrs": None, "dht_mode": "client", "use_relay": False}


class Echo(Service):
    """Sends back what comes, until nothing does, or "bye"."""

    name = "echo"

    def __init__(self) -> None:
        self.callers: list[str] = []
        self.heard: list[bytes] = []
        self.open = 0

    async def serve(self, peer: str, stream: Stream) -> None:
        self.callers.append(peer)
        self.open += 1
        try:
            while (said := await stream.receive(2**21)) != b"bye":
                self.heard.append(said)
                await stream.send(said)
        finally:
            self.open -= 1


class Unforwarded(Echo):
    """Served to those that are directly connected."""

    name = "unforwarded"


class Pouring(Service):
    """Sends without end."""

    name = "pouring"

    def __init__(self) -> None:
        self.poured, self.open = 0, False

    async def serve(self, peer: str, stream: Stream) -> None:
        self.open = True
        try:
            while True:
                await stream.send(bytes(2**18))
                self.poured += 1
        finally:
            self.open = False


class Meeting:
    """Alice and Bob, who know the organizer and Frank, who was invited as well."""

    def __init__(self, folder: Path) -> None:
        self.organizer = Place(folder, "organizer")
        self.alice, self.bob, self.frank = (Place(folder, name, self.organizer) for name in ("alice", "bob", "frank"))
        for place in (self.alice, self.bob, self.frank):
            self.organizer.invite(place)
        self.echo, self.unforwarded, self.pouring = Echo(), Unforwarded(), Pouring()
        self.endpoints: dict[Place, Endpoint] = {}

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            known: Sequence[Any] = ()
            for place in (self.organizer, self.frank):
                self.endpoints[place] = await stack.enter_async_context(place.open(*known, **QUICK))
                known = (*known, *await self.endpoints[place].p2p.get_visible_maddrs())
            places = self.alice, self.bob
            opening = (stack.enter_async_context(place.open(*known, **QUICK, **OUTGOING)) for place in places)
            self.endpoints |= zip(places, await asyncio.gather(*opening), strict=True)
            bobs = self.endpoints[self.bob]
            await bobs.add(ForwardedService(Greeter(self.bob.gate, self.bob.signer), [self.echo, self.pouring]))
            for service in (self.echo, self.unforwarded):
                await bobs.add(service)
            yield

    async def forward(self, place: Place, limits: Limits) -> None:
        self.forwarding = ForwardingService(self.endpoints[place], place.gate, limits)
        await self.endpoints[place].add(self.forwarding)

    def caller(self, *forwarders: Place) -> Caller:
        """Alice's."""
        return self.caller_of(self.alice, *forwarders)

    def caller_of(self, place: Place, *forwarders: Place) -> Caller:
        return Caller(
            self.endpoints[place],
            Greeter(place.gate, place.signer),
            lambda _: [forwarder.signer.peer for forwarder in forwarders],
        )


class Loop:
    """An event loop that lives as long as the module whose tests use it, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()  # as in a peer's processes
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, HANG), self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def meeting(folder: Path) -> Iterator[tuple[Meeting, Loop]]:
    loop, met = Loop(), Meeting(folder)
    held = met.held()
    loop.run(held.__aenter__())
    try:
        yield met, loop
    finally:
        loop.run(held.__aexit__(None, None, None))
        loop.stop()


async def until(true: Callable[[], bool]) -> None:
    """The loop's deadline is the test's."""
    while not true():
        await asyncio.sleep(0.01)
