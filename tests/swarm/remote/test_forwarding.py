"""Peers that cannot dial each other meet at one that both are connected to; real nodes on loopback."""

import os
from collections.abc import Iterator

import pytest

from dedloc_kit.swarm.remote.forwarding import ForwardingService, Limits
from tests.swarm.remote.meeting import Echo, Loop, Meeting, gone, meeting


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Meeting, Loop]]:
    """The organizer forwards, and Frank as well."""
    with meeting(tmp_path_factory.mktemp("meeting")) as (met, loop):
        for place in (met.organizer, met.frank):
            service = ForwardingService(met.endpoints[place], place.gate, Limits())
            loop.run(met.endpoints[place].add(service))
        yield met, loop


def test_two_peers_that_nobody_can_dial_meet_through_one_that_both_are_connected_to(
    met: tuple[Meeting, Loop],
) -> None:
    meeting, loop = met
    bob = meeting.bob.signer.peer

    async def call() -> None:
        with pytest.raises(OSError, match=r"."):
            async with meeting.endpoints[meeting.alice].open(bob, Echo):
                pass
        async with meeting.caller(meeting.organizer).open(bob, Echo, b"first") as stream:
            assert await stream.receive(100) == b"first"
            for size in (1, 2**14, 2**14 + 1, 2**20):
                said = os.urandom(size)
                await stream.send(said)
                assert await stream.receive(size) == said
        assert meeting.echo.callers == [meeting.alice.signer.peer]
        await gone(meeting.echo)

    loop.run(call())
