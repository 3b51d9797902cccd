"""What the network process carries until a group stands, over pairs of sockets instead of libp2p."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.gathering.messages import Answered, Asked, Attempt, Carried, Join, Lost, Member, Verdict
from dedloc_kit.swarm.gathering.service import UNHEARD, GatheringService
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES
from tests.hang import HANG
from tests.swarm.harness import RUN_ID, join, run_of
from tests.swarm.local_network import LocalNetwork

WAIT, NO = Verdict(verdict="wait", seconds=5.0), Verdict(verdict="no", leader="c")
GROUP = Verdict(
    verdict="group",
    attempt=Attempt(nonce="ab" * 16, previous="", members=(Member(peer="a"), Member(peer="b"))),
)


class Meeting:
    """Peers, and what their training hears."""

    def __init__(self, *peers: str) -> None:
        self.network = LocalNetwork()
        self.services = {peer: GatheringService(self.network.endpoint(peer), run_of()) for peer in peers}
        for peer, service in self.services.items():
            self.network.serve(peer, service)

    async def hear(self, peer: str, count: int = 1) -> list[Carried]:
        """The next things that a peer's training hears."""
        events = list[Carried]()
        async with asyncio.timeout(HANG):
            while len(events) < count:
                events += await self.services[peer].heard()
        return events


def meeting(*peers: str) -> Callable[[Callable[[Meeting], Awaitable[None]]], None]:
    """Let these peers meet in a story."""

    def tell(story: Callable[[Meeting], Awaitable[None]]) -> None:
        async def told() -> None:
            await story(Meeting(*peers))

        in_own_loop(told())

    return tell


def test_a_peer_asks_another_one_which_lets_it_wait_and_tells_it_of_the_group() -> None:
    @meeting("a", "b")
    async def story(us: Meeting) -> None:
        asked = join()
        await us.services["a"].ask("b", asked)
        assert await us.hear("b") == [Asked("a", asked)]
        for verdict in (WAIT, WAIT, GROUP):
            await us.services["b"].answer("a", verdict)
            assert await us.hear("a") == [Answered("b", verdict)]
        assert await us.hear("b") == [Lost("a", broken=False)]


def test_a_peer_that_is_refused_may_ask_again() -> None:
    @meeting("a", "b")
    async def story(us: Meeting) -> None:
        for _ in range(3):
            await us.services["a"].ask("b", join())
            assert isinstance((await us.hear("b"))[0], Asked)
            await us.services["b"].answer("a", NO)
            assert await us.hear("a") == [Answered("b", NO)]
            assert await us.hear("b") == [Lost("a", broken=False)]


def test_a_leader_learns_that_a_follower_has_left() -> None:
    @meeting("a", "b")
    async def story(us: Meeting) -> None:
        await us.services["a"].ask("b", join())
        await us.hear("b")
        await us.services["a"].leave("b")
        assert await us.hear("b") == [Lost("a", broken=False)]
        await us.services["b"].answer("a", GROUP)
        await us.services["a"].ask("b", join())
        assert isinstance((await us.hear("b"))[0], Asked), "nothing of the old stream is heard"


@pytest.mark.parametrize("there", [True, False])
def test_a_follower_learns_that_its_leader_is_not_there_or_falls(there: bool) -> None:
    @meeting("a", "b")
    async def story(us: Meeting) -> None:
        if not there:
            us.network.cut("b")
        await us.services["a"].ask("b", join())
        if there:
            await us.hear("b")
            us.network.break_lines("a", "b", "group")
        assert [type(event) for event in await us.hear("a")] == [Lost]


def test_a_peer_that_asks_anew_takes_the_place_of_its_older_stream() -> None:
    @meeting("a", "b")
    async def story(us: Meeting) -> None:
        line = us.network.endpoint("a").open("b", GatheringService, join().to_bytes())
        async with line as stream:
            await us.hear("b")
            await us.services["a"].ask("b", join(samples=5))
            (asked,) = await us.hear("b")
            assert isinstance(asked, Asked)
            assert asked.join.position.samples == 5
            assert await stream.reader.read(1) == b"", "the older one is over"
            await us.services["b"].answer("a", NO)
            assert await us.hear("a") == [Answered("b", NO)]


@pytest.mark.parametrize(
    "said",
    [
        join(RUN_ID[:-1] + "0").to_bytes(),
        join(samples=10**6).to_bytes(),
        join().to_bytes() + bytes(MAX_RECORD_BYTES),
        b"{}",
        b"[" * 2000,
    ],
    ids=["another run", "too many samples", "too long", "no join", "deep"],
)
def test_nothing_is_heard_of_a_peer_that_says_nonsense(said: bytes) -> None:
    @meeting("a", "b", "mallory")
    async def story(us: Meeting) -> None:
        async with us.network.endpoint("mallory").open("b", GatheringService, said) as stream, asyncio.timeout(HANG):
            assert await stream.reader.read(1) == b""
        asked = join()
        await us.services["a"].ask("b", asked)
        assert await us.hear("b") == [Asked("a", asked)]


def test_a_leader_that_says_nonsense_is_lost() -> None:
    class Liar(GatheringService):
        async def serve(self, peer: str, stream: Any) -> None:
            Join.from_bytes(await stream.receive(MAX_RECORD_BYTES))
            await stream.send(b"{}")
            await stream.closed()

    @meeting("a")
    async def story(us: Meeting) -> None:
        us.network.serve("liar", Liar(us.network.endpoint("liar"), run_of()))
        await us.services["a"].ask("liar", join())
        assert await us.hear("a") == [Lost("liar", broken=True)]


def test_what_the_training_does_not_hear_waits_in_its_streams() -> None:
    names = [f"p{number}" for number in range(UNHEARD + 5)]

    @meeting("b", *names)
    async def story(us: Meeting) -> None:
        for name in names:
            await us.services[name].ask("b", join())
        assert len(await us.hear("b", count=UNHEARD)) >= UNHEARD
        assert len(await us.hear("b", count=1)) <= UNHEARD
