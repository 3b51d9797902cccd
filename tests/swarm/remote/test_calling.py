"""Directly where it can be, and through others where it cannot; real nodes on loopback."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from dedloc_kit.swarm.network.service import Endpoint, Service, Stream
from dedloc_kit.swarm.remote import calling
from dedloc_kit.swarm.remote.calling import Caller
from dedloc_kit.swarm.remote.forwarding import Limits
from dedloc_kit.swarm.remote.greeting import Greeter
from tests.swarm.network.test_service import RUN_ID
from tests.swarm.remote.meeting import Echo, Loop, Meeting, meeting


class Noting(Endpoint):
    """Notes what is opened."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.p2p, RUN_ID)
        self.opened: list[str] = []

    @asynccontextmanager
    async def open(self, peer: str, service: Service | type[Service], first: bytes = b"") -> AsyncIterator[Stream]:
        self.opened.append(peer)
        async with super().open(peer, service, first) as stream:
            yield stream


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Meeting, Loop]]:
    """Frank does not forward, the organizer does, and echoes as well."""
    with meeting(tmp_path_factory.mktemp("meeting")) as (met, loop):
        loop.run(met.forward(met.organizer, Limits()))
        loop.run(met.endpoints[met.organizer].add(met.echo))
        yield met, loop


def test_a_peer_is_called_directly_or_through_others_and_what_worked_is_tried_first(
    met: tuple[Meeting, Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting, loop = met
    alice, endpoint = meeting.alice, Noting(meeting.endpoints[meeting.alice])
    bob, frank, organizer = (place.signer.peer for place in (meeting.bob, meeting.frank, meeting.organizer))
    caller = Caller(endpoint, Greeter(alice.gate, alice.signer), lambda _: [bob, frank, organizer])

    async def tried(peer: str) -> list[str]:
        endpoint.opened.clear()
        async with caller.open(peer, Echo, b"hello") as stream:
            assert await stream.receive(100) == b"hello"
        return endpoint.opened

    assert loop.run(tried(organizer)) == [organizer]
    assert loop.run(tried(bob)) == [bob, frank, organizer]
    assert loop.run(tried(bob)) == [organizer]
    monkeypatch.setattr(calling, "REMEMBER_SECONDS", 0.0)
    assert loop.run(tried(bob)) == [bob, organizer], "it is dialled again, and who failed comes last"


def test_where_nobody_helps_it_says_so(met: tuple[Meeting, Loop]) -> None:
    meeting, loop = met

    async def call() -> None:
        async with meeting.caller(meeting.frank).open(meeting.bob.signer.peer, Echo):
            raise AssertionError("it was reached")

    with pytest.raises(ConnectionError, match="neither directly nor through"):
        loop.run(call())
