"""Who asks as if it were the organizer, and who answers the organizer without an end; real libp2p on loopback."""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hivemind.p2p import P2P, PeerID

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.audits import answering, proofs
from dedloc_kit.swarm.audits.answering import RecomputeService
from dedloc_kit.swarm.audits.known_answer import MOST_EACH, KnownAnswers
from dedloc_kit.swarm.audits.probation import Given, StandingService
from dedloc_kit.swarm.audits.proofs import ProofService, Shown
from dedloc_kit.swarm.audits.questions import AskKnown, Found, Known, Prove, Recompute
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.service import Endpoint, NoAnswer, Service, Stream, encode
from tests.hang import HANG
from tests.swarm.audits.test_proofs import LARGEST
from tests.swarm.network.test_service import RUN_ID, Place

PROVE = Prove(group="ab", part=3)
RECOMPUTE = Recompute(author="Qm", session="ab", work=b"w", begin=0, end=1, seed=bytes(32))
GROWTH = 50_000_000


class Meeting:
    """The organizer, alice, who is asked, mallory, whom the organizer has let in too, and a stranger."""

    def __init__(self, folder: Path) -> None:
        self.organizer = Place(folder, "organizer")
        self.alice, self.mallory, self.stranger = (
            Place(folder, name, self.organizer) for name in ("alice", "mallory", "stranger")
        )
        self.organizer.invite(self.alice)
        self.organizer.invite(self.mallory)
        self.questions = list[Prove]()
        self.ends = dict[str, Endpoint]()

    def prove(self, question: Prove) -> Shown:
        self.questions.append(question)
        return LARGEST

    def run(self, do: Callable[["Meeting"], Awaitable[None]]) -> None:
        async def meet() -> None:
            async with AsyncExitStack() as stack:
                met: list[Any] = []  # addresses: each is told of all who came before
                for name in ("alice", "organizer", "mallory", "stranger"):
                    place = getattr(self, name)
                    self.ends[name] = end = await stack.enter_async_context(place.open(*met))
                    met += await end.p2p.get_visible_maddrs()
                async with asyncio.timeout(2 * HANG):
                    await do(self)

        in_own_loop(meet())

    def proofs_of(self, name: str) -> ProofService:
        return ProofService(self.ends[name], "", lambda _: None, lambda _: None)

    def recompute_of(self, name: str) -> RecomputeService:
        return RecomputeService(self.ends[name], "")

    def standing_of(self, name: str) -> StandingService:
        return StandingService(self.ends[name], "", lambda _: None)

    @property
    def to_alice(self) -> str:
        return self.alice.signer.peer


@pytest.mark.soak
def test_only_the_organizer_is_answered_not_a_member_and_not_a_stranger(tmp_path: Path) -> None:
    async def ask(meeting: Meeting) -> None:
        end, organizer = meeting.ends["alice"], meeting.organizer.signer.peer
        recomputing, given = RecomputeService(end, organizer), list[str]()
        await end.add(StandingService(end, organizer, given.append))
        await end.add(ProofService(end, organizer, meeting.prove, lambda _: b""))
        await end.add(recomputing)
        for name in ("mallory", "stranger"):
            with pytest.raises(NoAnswer):
                await meeting.proofs_of(name).ask(meeting.to_alice, PROVE)
            with pytest.raises(NoAnswer):
                await meeting.recompute_of(name).ask(meeting.to_alice, RECOMPUTE)
            with pytest.raises(NoAnswer):
                await meeting.standing_of(name).give(meeting.to_alice, "ab")
        assert not meeting.questions
        await past_its_own_gate(meeting)
        assert not meeting.questions
        assert not given
        await meeting.standing_of("organizer").give(meeting.to_alice, "ab")
        assert given == ["ab"]
        assert await meeting.proofs_of("organizer").ask(meeting.to_alice, PROVE) == LARGEST
        answer = asyncio.create_task(meeting.recompute_of("organizer").ask(meeting.to_alice, RECOMPUTE))
        number, question = await recomputing.next()
        assert (number, question) == (1, RECOMPUTE), "of the others' questions the training has heard nothing"
        recomputing.give(number, Found())
        assert await answer == Found()

    Meeting(tmp_path).run(ask)


async def past_its_own_gate(meeting: Meeting) -> None:
    """The stranger opens the streams of the services as no client of ours does."""
    for service, question in (
        (ProofService, PROVE),
        (RecomputeService, RECOMPUTE),
        (StandingService, Given(standing="ab")),
    ):
        _, reader, writer = await P2P.call_binary_stream_handler(
            meeting.ends["stranger"].p2p, PeerID.from_base58(meeting.to_alice), Names(RUN_ID).service(service.name)
        )
        stream = Stream(reader, writer)
        with suppress(OSError):  # it may be closed before the question is out
            await stream.send(encode(question))
        with pytest.raises((EOFError, OSError)):
            await asyncio.wait_for(stream.receive(100), HANG)
        writer.close()


@pytest.mark.soak
def test_of_members_that_ask_for_known_answers_without_end_one_computation_comes_and_strangers_are_not_answered(
    tmp_path: Path,
) -> None:
    async def ask(meeting: Meeting) -> None:
        organizer = meeting.organizer.signer.peer
        known = {name: KnownAnswers(end, organizer, "") for name, end in meeting.ends.items()}
        known["organizer"] = KnownAnswers(meeting.ends["organizer"], organizer, organizer)
        await meeting.ends["organizer"].add(known["organizer"])
        with pytest.raises(NoAnswer):
            await known["stranger"].ask(3)
        _, reader, writer = await P2P.call_binary_stream_handler(
            meeting.ends["stranger"].p2p, PeerID.from_base58(organizer), Names(RUN_ID).service(KnownAnswers.name)
        )
        with suppress(OSError):
            await Stream(reader, writer).send(encode(AskKnown(step=3)))
        with pytest.raises((EOFError, OSError)):
            await asyncio.wait_for(Stream(reader, writer).receive(100), HANG)
        writer.close()
        assert known["organizer"]._waiting.empty()
        flood = [asyncio.create_task(known["mallory"].ask(step)) for step in range(50)]
        while sum(each.done() for each in flood) < 49:  # at most until the deadline of this test
            await asyncio.sleep(0.01)
        assert known["organizer"]._waiting.qsize() == 1
        step = await known["organizer"].next()
        known["organizer"].give(Known())
        refused = [each for each in await asyncio.gather(*flood, return_exceptions=True) if isinstance(each, NoAnswer)]
        assert len(refused) == 50 - MOST_EACH
        answer = asyncio.create_task(known["alice"].ask(step))
        assert await asyncio.wait_for(known["organizer"].next(), HANG) == step
        known["organizer"].give(Known(norms=(1.0,)))
        assert await answer == Known(norms=(1.0,)), "others are answered"

    Meeting(tmp_path).run(ask)


class Endless(Service):
    """Answers any question with what never ends."""

    def __init__(self, name: str, beginning: bytes, again: bytes) -> None:
        self.name, self._beginning, self._again = name, beginning, again

    async def serve(self, peer: str, stream: Stream) -> None:
        stream.writer.write(self._beginning)
        while True:
            stream.writer.write(self._again)
            await stream.writer.drain()


@pytest.mark.soak
@pytest.mark.parametrize("kind", [ProofService, RecomputeService])
@pytest.mark.parametrize(
    ("beginning", "again"),
    [
        (b"", bytes(2**16)),  # signs of life
        ((2**32 - 1).to_bytes(4, "big"), b"x" * 2**16),
        ((4096).to_bytes(4, "big"), b"\x81" * 2**16),  # nested without an end
    ],
    ids=["signs of life", "a huge message", "nested"],
)
def test_an_answer_without_an_end_takes_bounded_memory_and_time(
    kind: type[ProofService] | type[RecomputeService],
    beginning: bytes,
    again: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proofs, "PROOF_SECONDS", 3.0)
    monkeypatch.setattr(answering, "RECOMPUTE_SECONDS", 3.0)

    async def ask(meeting: Meeting) -> None:
        await meeting.ends["alice"].add(Endless(kind.name, beginning, again))
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        proof = meeting.proofs_of("organizer").ask(meeting.to_alice, PROVE)
        found = meeting.recompute_of("organizer").ask(meeting.to_alice, RECOMPUTE)
        asked, other = (proof, found) if kind is ProofService else (found, proof)
        other.close()
        with pytest.raises(NoAnswer):
            await asked
        assert time.monotonic() - began < HANG
        assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < GROWTH

    Meeting(tmp_path).run(ask)
