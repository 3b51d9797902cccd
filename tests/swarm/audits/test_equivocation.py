"""Two different entries of one author in one round convict it, whoever hands them in; nothing else does."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from dedloc_kit.swarm.allreduce.wire import ENTRY_BYTES
from dedloc_kit.swarm.audits import equivocation
from dedloc_kit.swarm.audits.equivocation import Equivocation, EquivocationService, Introduced
from dedloc_kit.swarm.audits.verdicts import MAX_EVIDENCE_BYTES, keep_evidence
from dedloc_kit.swarm.averaging.entries import piece_of
from dedloc_kit.swarm.consensus.records import Entry, Goodbye, Piece, Voter
from dedloc_kit.swarm.network.identity import Identity, Signer
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.p2p.adapters import KeySigner, KeyVerifier
from tests.swarm.audits.audited import pledged

RUN_ID = "toy-0123456789abcdef"


@cache
def signer(name: str) -> Signer:
    with TemporaryDirectory() as folder:
        return Signer(Identity(Path(folder) / name))


def introduction(author: str, step: int = 3, **values: Any) -> bytes:
    """The entry of an author, signed anew each time."""
    about = pledged(author, step, **values).model_dump_json()
    samples = 40
    made = Entry(
        run_id=RUN_ID,
        part="",
        previous="ab" * 32,
        voter=Voter(signer(author).peer, 1),
        pieces=(Piece(hash=piece_of(about), samples=samples, weight=samples),),
        about=about,
    )
    return made.signed(KeySigner(signer(author))).to_bytes()


def organizer() -> EquivocationService:
    me = signer("organizer").peer
    return EquivocationService(_end(), me, me)


def _end() -> Any:
    return SimpleNamespace(run_id=RUN_ID)


def found(*handed_in: tuple[str, Sequence[bytes]]) -> list[Equivocation]:
    """What comes of what these peers hand in; what is refused as well."""
    service = organizer()

    async def hand_in() -> list[Equivocation]:
        for peer, signed in handed_in:
            with suppress(ValueError):
                await service.answer(peer, Introduced(signed=tuple(signed)))
        return [service._found.get_nowait() for _ in range(service._found.qsize())]

    return asyncio.run(hand_in())


ONE, OTHER = introduction("mallory"), introduction("mallory", time=2.0)


@pytest.mark.parametrize("handed_in", [[("a", [ONE]), ("b", [OTHER])], [("a", [ONE, OTHER])]])
def test_two_introductions_to_one_round_convict_their_author(
    handed_in: list[tuple[str, list[bytes]]], tmp_path: Path
) -> None:
    (each,) = found(*handed_in)
    assert each == Equivocation(signer("mallory").peer, 3, (ONE, OTHER))
    verdict = each.verdict
    assert (verdict.peer, verdict.why) == (
        signer("mallory").peer,
        "it introduced itself to one round in two ways (global step 3)",
    )
    keep_evidence(tmp_path, verdict)
    (evidence,) = tmp_path.iterdir()
    text = evidence.read_text()
    assert ONE.hex() in text
    assert OTHER.hex() in text
    assert len(text) < MAX_EVIDENCE_BYTES


def test_the_same_signed_twice_convicts_nobody() -> None:
    again = introduction("mallory")
    assert again != ONE
    Entry.from_bytes(again).verify(KeyVerifier())
    assert found(("a", [ONE]), ("b", [again])) == []


@pytest.mark.parametrize(
    "other",
    [
        ONE,  # as several reducers got it
        introduction("mallory", group="ef", time=2.0),  # a retry
        introduction("mallory", step=4),
        introduction("alice", time=2.0),
        introduction("mallory", run_id="other-0123456789abcdef", time=2.0),
        introduction("mallory", microbatches=0, time=2.0),  # as of who takes a step alone
        Goodbye(run_id=RUN_ID, part="", head="", voter=Voter(signer("mallory").peer, 1)).to_bytes(),
        ONE[:-1],
        b"",
    ],
    ids=["the same", "a retry", "step", "author", "run", "no work", "record", "damaged", "empty"],
)
def test_anything_else_convicts_nobody(other: bytes) -> None:
    assert found(("a", [ONE]), ("b", [other])) == []
    assert found(("a", [other]), ("b", [ONE])) == []
    assert len(found(("a", [other]), ("b", [ONE]), ("c", [OTHER]))) == 1, "nor does it hide anything"


def test_the_organizer_cannot_be_made_to_send_itself_away() -> None:
    assert found(("a", [introduction("organizer"), introduction("organizer", time=2.0)])) == []


def test_one_member_can_hand_in_only_so_much_in_a_minute_and_what_is_kept_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(equivocation, "MAX_KEPT", 3)

    async def hand_in() -> None:
        service, many = organizer(), [introduction("mallory", step=step) for step in range(equivocation.PER_MINUTE + 1)]
        for signed in many[:-1]:
            await service.answer("a", Introduced(signed=(signed,)))
        assert list(service._kept.values()) == many[-4:-1]
        with pytest.raises(ValueError, match="too much"):
            await service.answer("a", Introduced(signed=(many[-1],)))
        await service.answer("b", Introduced(signed=(many[-1],)))

    asyncio.run(hand_in())


def test_more_than_the_coordinator_takes_away_is_not_kept() -> None:
    async def hand_in() -> None:
        service = organizer()
        for number in range(2 * equivocation.MAX_WAITING):
            await service.answer(f"{number}", Introduced(signed=(ONE, OTHER)))
        assert service._found.qsize() == equivocation.MAX_WAITING

    asyncio.run(hand_in())


def test_who_is_not_the_organizer_takes_nothing() -> None:
    async def hand_in() -> None:
        service = EquivocationService(_end(), signer("alice").peer, signer("organizer").peer)
        with pytest.raises(ValueError, match="not the organizer"):
            await service.answer("a", Introduced(signed=(ONE, OTHER)))

    asyncio.run(hand_in())


def test_two_of_the_longest_fit_into_a_message() -> None:
    longest = bytes(ENTRY_BYTES)
    assert len(encode(Introduced(signed=(longest, longest)))) <= equivocation._MAX_BYTES
