"""A member shows the organizer what it committed to, and nobody else; whatever comes back is bounded."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.audits import proofs
from dedloc_kit.swarm.audits.proofs import (
    MAX_PART_BYTES,
    MAX_PIECE_BYTES,
    MAX_WORK_BYTES,
    ProofService,
    Shown,
)
from dedloc_kit.swarm.audits.questions import Proof, Prove
from dedloc_kit.swarm.network.service import NoAnswer, Service, Stream, encode
from dedloc_kit.swarm.trust.commitments import Opening
from tests.swarm.local_network import LocalNetwork

QUESTION = Prove(group="ab", part=3)
WORKS = {"ab": b"w" * MAX_WORK_BYTES}
_LONG = Opening(number=2**16 - 1, count=2**16, path=(bytes(32),) * 16)
LARGEST = Shown(
    Proof(begin=2**53, end=2**53, part=_LONG, before=_LONG, after=_LONG),
    b"p" * MAX_PART_BYTES,
    b"b" * MAX_PIECE_BYTES,
    b"a" * MAX_PIECE_BYTES,
    b"w" * MAX_WORK_BYTES,
)


def asked(do: Callable[[LocalNetwork, ProofService], Awaitable[None]], prove: Callable[[Prove], Shown | None]) -> None:
    """Do something as the organizer, where alice can be asked."""

    async def meet() -> None:
        network = LocalNetwork()
        await network.endpoint("alice").add(ProofService(network.endpoint("alice"), "organizer", prove, WORKS.get))
        await network.endpoint("mallory").add(ProofService(network.endpoint("mallory"), "organizer", prove, WORKS.get))
        organizer = ProofService(network.endpoint("organizer"), "organizer", lambda _: None, WORKS.get)
        await network.endpoint("organizer").add(organizer)
        async with asyncio.timeout(60.0):
            await do(network, organizer)

    in_own_loop(meet())


def test_the_organizer_is_shown_the_largest_proof_that_there_is() -> None:
    async def ask(_: LocalNetwork, organizer: ProofService) -> None:
        assert await organizer.ask("alice", QUESTION) == LARGEST

    asked(ask, lambda question: LARGEST if question == QUESTION else None)


@pytest.mark.soak
def test_what_is_not_kept_is_no_answer_and_the_next_question_gets_one() -> None:
    async def ask(_: LocalNetwork, organizer: ProofService) -> None:
        with pytest.raises(NoAnswer):
            await organizer.ask("alice", Prove(group="cd", part=0))
        assert await organizer.ask("alice", QUESTION) == LARGEST

    asked(ask, lambda question: LARGEST if question == QUESTION else None)


@pytest.mark.soak
def test_a_part_or_the_work_of_a_round_is_shown_alone() -> None:
    async def ask(_: LocalNetwork, organizer: ProofService) -> None:
        shown = await organizer.ask("alice", QUESTION.model_copy(update={"only": "part"}))
        assert shown == (LARGEST.proof, LARGEST.part, b"", b"", b"")
        assert await organizer.ask_work("alice", "ab") == WORKS["ab"]
        with pytest.raises(NoAnswer):
            await organizer.ask_work("alice", "cd")

    asked(ask, lambda question: LARGEST)


def test_another_member_is_shown_nothing() -> None:
    questions = list[Prove]()

    def prove(question: Prove) -> Shown:
        questions.append(question)
        return LARGEST

    async def ask(network: LocalNetwork, _: ProofService) -> None:
        mallory = ProofService(network.endpoint("mallory"), "mallory", lambda _: None, WORKS.get)
        with pytest.raises(NoAnswer):
            await mallory.ask_work("alice", "ab")
        with pytest.raises(NoAnswer):
            await mallory.ask("alice", QUESTION)
        assert not questions, "nothing was even read from the disk"

    asked(ask, prove)


def test_of_several_questions_one_is_answered_after_the_other() -> None:
    """Whoever is asked in two audits at once must not seem to be silent in one of them."""
    turn = threading.Lock()

    def prove(_: Prove) -> Shown:
        assert turn.acquire(blocking=False)
        time.sleep(0.05)
        turn.release()
        return LARGEST

    async def ask(_: LocalNetwork, organizer: ProofService) -> None:
        assert await asyncio.gather(*(organizer.ask("alice", QUESTION) for _ in range(4))) == [LARGEST] * 4

    asked(ask, prove)


@pytest.mark.parametrize("which", range(5))
def test_a_message_that_is_announced_too_long_ends_the_question_before_it_is_read(which: int) -> None:
    limits = (4096, MAX_PART_BYTES, MAX_PIECE_BYTES, MAX_PIECE_BYTES, MAX_WORK_BYTES)

    class Huge(Service):
        name = ProofService.name

        async def serve(self, peer: str, stream: Stream) -> None:
            for message in (encode(LARGEST.proof), *LARGEST[1:])[:which]:
                await stream.send(message)
            stream.writer.write((limits[which] + 1).to_bytes(4, "big"))
            await stream.closed(60.0)

    async def ask(network: LocalNetwork, organizer: ProofService) -> None:
        await network.endpoint("alice").add(Huge())
        with pytest.raises(NoAnswer, match=f"at most {limits[which]}"):
            await organizer.ask("alice", QUESTION)

    asked(ask, lambda _: None)


@pytest.mark.parametrize("message", [b"", b"\xc0", b"x"], ids=["signs of life", "no record", "no message pack"])
def test_an_answer_without_an_end_is_given_up(message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "PROOF_SECONDS", 1.0)

    class Endless(Service):
        name = ProofService.name

        async def serve(self, peer: str, stream: Stream) -> None:
            while True:
                await stream.send(message)

    async def ask(network: LocalNetwork, organizer: ProofService) -> None:
        await network.endpoint("alice").add(Endless())
        with pytest.raises(NoAnswer):
            await organizer.ask("alice", QUESTION)

    asked(ask, lambda _: None)
