"""How long it takes to a peer and back."""

import asyncio

import pytest

from dedloc_kit.swarm.network.service import Service, Stream
from dedloc_kit.swarm.remote.pulse import Pulse, round_trip
from tests.swarm.local_network import LocalNetwork


class Slow(Service):
    name = "pulse"

    def __init__(self, first: float, later: float) -> None:
        self._waits = [first, later, later, later]

    async def serve(self, peer: str, stream: Stream) -> None:
        for wait in self._waits:
            beat = await stream.receive(8)
            await asyncio.sleep(wait)
            await stream.send(beat)


def test_the_first_beat_which_opens_the_stream_does_not_count() -> None:
    async def measure() -> tuple[float, float]:
        network = LocalNetwork()
        me, near, far = map(network.endpoint, ("me", "near", "far"))
        await me.add(Pulse())
        await near.add(Slow(0.3, 0.0))
        await far.add(Slow(0.0, 0.3))
        return await round_trip(me, "near"), await round_trip(me, "far")

    near, far = asyncio.run(measure())
    assert near < 0.3 <= far


def test_a_peer_that_is_gone_or_sends_too_much_is_no_answer() -> None:
    class Long(Service):
        name = "pulse"

        async def serve(self, peer: str, stream: Stream) -> None:
            await stream.receive(8)
            await stream.send(bytes(1000))

    async def measure() -> None:
        network = LocalNetwork()
        me, other = map(network.endpoint, ("me", "other"))
        await me.add(Pulse())
        with pytest.raises(OSError, match="not there"):
            await round_trip(me, "other")
        await other.add(Long())
        with pytest.raises(ValueError, match="1000 bytes"):
            await round_trip(me, "other")

    asyncio.run(measure())
