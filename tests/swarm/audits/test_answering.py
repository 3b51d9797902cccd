"""The organizer's questions come to the training, one at a time, and its answers back."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.audits import answering
from dedloc_kit.swarm.audits.answering import Answering, RecomputeService, only_own
from dedloc_kit.swarm.audits.projections import PROJECTIONS
from dedloc_kit.swarm.audits.questions import MAX_ASKED, Found, Recompute
from dedloc_kit.swarm.network.host import Host, Owner
from dedloc_kit.swarm.network.service import NoAnswer, Service, Stream, encode
from dedloc_kit.swarm.trust.pledge import Work
from tests.hang import HANG
from tests.swarm.local_network import LocalNetwork

LINES = b"".join(Work(2**60, 0, 2**60, 2**31, 2**60).content for _ in range(MAX_ASKED))
LARGEST = Found(
    projections=((1.1e300,) * PROJECTIONS,) * MAX_ASKED, norms=(1.1e300,) * MAX_ASKED, weights=(1.1e300,) * MAX_ASKED
)


def question(number: int = 0, author: str = "bob") -> Recompute:
    return Recompute(author=author, session="ab", work=LINES, begin=number, end=2**53, seed=b"s" * 32)


def asked(do: Callable[[RecomputeService, RecomputeService, LocalNetwork], Awaitable[None]]) -> None:
    """Do something with alice's service and the organizer's."""

    async def meet() -> None:
        network = LocalNetwork()
        alice, organizer = (RecomputeService(network.endpoint(who), "organizer") for who in ("alice", "organizer"))
        await network.endpoint("alice").add(alice)
        await network.endpoint("organizer").add(organizer)
        async with asyncio.timeout(HANG):
            await do(alice, organizer, network)

    in_own_loop(meet())


def test_the_training_answers_the_organizer() -> None:
    async def ask(alice: RecomputeService, organizer: RecomputeService, _: LocalNetwork) -> None:
        answer = asyncio.create_task(organizer.ask("alice", question(5)))
        number, heard = await alice.next()
        assert heard == question(5)
        alice.give(number, LARGEST)
        assert await answer == LARGEST, "the largest that there is"

    asked(ask)


def test_another_member_is_answered_nothing_and_the_training_hears_nothing_of_it() -> None:
    async def ask(alice: RecomputeService, organizer: RecomputeService, network: LocalNetwork) -> None:
        mallory = RecomputeService(network.endpoint("mallory"), "mallory")
        await network.endpoint("mallory").add(mallory)
        with pytest.raises(NoAnswer):
            await mallory.ask("alice", question(1))
        answer = asyncio.create_task(organizer.ask("alice", question(2)))
        assert (await alice.next())[1] == question(2)
        answer.cancel()

    asked(ask)


def test_whoever_asks_anew_has_given_up_what_it_asked_before() -> None:
    async def ask(alice: RecomputeService, organizer: RecomputeService, _: LocalNetwork) -> None:
        first = asyncio.create_task(organizer.ask("alice", question(1)))
        number, _heard = await alice.next()
        second = asyncio.create_task(organizer.ask("alice", question(2)))
        with pytest.raises(NoAnswer):
            await first
        alice.give(number, LARGEST)  # an answer to the first is none to the second
        number, heard = await alice.next()
        assert heard == question(2)
        alice.give(number, Found())
        assert await second == Found()
        alice.give(number, LARGEST)  # nobody waits any more

    asked(ask)


def test_of_questions_that_the_training_has_not_looked_at_only_the_newest_waits() -> None:
    async def ask(alice: RecomputeService, organizer: RecomputeService, _: LocalNetwork) -> None:
        answers = [asyncio.create_task(organizer.ask("alice", question(number))) for number in range(5)]
        done, waiting = await asyncio.wait(answers, timeout=1.0)
        assert (len(done), len(waiting)) == (4, 1)
        number, heard = await alice.next()
        alice.give(number, LARGEST)
        assert await waiting.pop() == LARGEST
        assert alice._waiting.empty()
        del heard

    asked(ask)


def test_a_training_that_never_answers_and_an_answer_without_an_end_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "RECOMPUTE_SECONDS", 0.5)

    class Endless(Service):
        name = RecomputeService.name

        async def serve(self, peer: str, stream: Stream) -> None:
            while True:
                await stream.send(b"")

    class Huge(Service):
        name = RecomputeService.name

        async def serve(self, peer: str, stream: Stream) -> None:
            await stream.send(encode(LARGEST) + bytes(4096))
            await stream.closed()

    async def ask(alice: RecomputeService, organizer: RecomputeService, network: LocalNetwork) -> None:
        with pytest.raises(NoAnswer):
            await organizer.ask("alice", question())
        while not alice._waiting.empty():  # at most until the deadline of this test
            await asyncio.sleep(0.01)
        for hostile in (Endless(), Huge()):
            await network.endpoint("alice").add(hostile)
            with pytest.raises(NoAnswer):
                await organizer.ask("alice", question())

    asked(ask)


class Asker:
    """Asks the service beside it, in the same process."""

    def __init__(self, organizer: RecomputeService) -> None:
        self._organizer = organizer

    async def ask(self, question: Recompute) -> Found:
        return await self._organizer.ask("alice", question)


@asynccontextmanager
async def living(_: Owner) -> AsyncIterator[Sequence[object]]:
    network = LocalNetwork()
    alice, organizer = (RecomputeService(network.endpoint(who), "organizer") for who in ("alice", "organizer"))
    await network.endpoint("alice").add(alice)
    await network.endpoint("organizer").add(organizer)
    yield alice, Asker(organizer)


@pytest.mark.child
def test_the_training_computes_between_two_of_its_own_microbatches_and_does_not_wait_for_questions() -> None:
    computed = list[Recompute]()

    def recompute(question: Recompute) -> Found:
        computed.append(question)
        return LARGEST

    host = Host(living)
    try:
        training = Answering(host, only_own("alice", recompute))
        for _ in range(3):
            training.turn()
        assert not computed
        for author, found in (("alice", LARGEST), ("bob", Found()), ("alice", LARGEST)):
            answer: Future[Found] = host.call(Asker.ask, question(author=author))
            deadline = time.monotonic() + HANG
            while not answer.done():
                assert time.monotonic() < deadline
                training.turn()
                time.sleep(0.01)
            assert answer.result() == found, "who declines accounts for its own work and for no other"
        assert [each.author for each in computed] == ["alice", "alice"]
    finally:
        host.stop()
    training.turn()  # a process that has died is found elsewhere
