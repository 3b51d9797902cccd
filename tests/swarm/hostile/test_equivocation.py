"""A member brings one entry to some reducers and another one to others; rounds over sockets, and libp2p."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.audits.equivocation import Equivocation, EquivocationService, Introduced
from dedloc_kit.swarm.averaging.entries import piece_of
from dedloc_kit.swarm.averaging.service import AveragingService, Opening
from dedloc_kit.swarm.consensus.records import Entry, Piece
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import NoAnswer, Stream, decode, encode
from dedloc_kit.swarm.p2p.adapters import KeySigner
from dedloc_kit.swarm.trust.pledge import Pledged, contribution_kind
from tests.hang import HANG
from tests.swarm.audits.test_equivocation import ONE, OTHER, signer
from tests.swarm.averaging.test_service import Party
from tests.swarm.hostile.test_audits import Meeting
from tests.swarm.network.test_service import RUN_ID
from tests.tiny import tiny_run

ORGANIZER, FOOLED, MALLORY = 0, 1, 3


class TwoFaced(Party):
    """Of four members the last tells the second something else than the others. The first is the organizer."""

    def __init__(self, folder: Path, *, checks: str = "on", global_batch: int = 32) -> None:
        self.faces = True
        self.handed_in = list[tuple[str, Introduced]]()
        trust = {"checks": checks}
        run = tiny_run(global_batch=global_batch, averaging={"compression": "4bit"}, trust=trust)
        self._equivocations: dict[str, EquivocationService] = {}
        super().__init__(folder, run, [torch.ones(20_000)] * 4, samples=(8,) * 4)

    def _service(self, signer: Signer, vector: SharedVector) -> AveragingService:
        service = super()._service(signer, vector)
        end: Any = SimpleNamespace(run_id=self.run.run_id, ask=lambda *question: self._ask(signer.peer, *question))
        if self.pledges:
            here = self._equivocations[signer.peer] = EquivocationService(end, signer.peer, self.peers[ORGANIZER])
            service._rules = replace(service._rules, equivocation=here)
        return service

    async def _ask(self, me: str, organizer: str, _: object, question: Introduced, __: float) -> object:
        self.handed_in.append((me, question))
        return await self._equivocations[organizer].answer(me, question)

    @asynccontextmanager
    async def line(self, me: str, peer: str, _: object, first: bytes) -> AsyncIterator[Stream]:
        if self.faces and (me, peer) == (self.peers[MALLORY], self.peers[FOOLED]):
            opening = Opening.parse(decode(first))
            promised, entry = wire.read_introduction(opening.introduction)
            other = wire.introduction(promised, self.another(entry))
            first = encode(opening.model_copy(update={"introduction": other}))
        async with super().line(me, peer, None, first) as stream:
            yield stream

    def another(self, entry: Entry) -> Entry:
        """That its author signs for the same round."""
        said = contribution_kind(self.run.trust).model_validate_json(entry.about)
        about = said.model_copy(update={"time": said.time + 1.0}).model_dump_json()
        pieces = (Piece(hash=piece_of(about), samples=entry.samples, weight=entry.weight),)
        return entry.changed(about=about, pieces=pieces).signed(KeySigner(self.signers[MALLORY]))

    async def found(self) -> list[Equivocation]:
        """All that the organizer has heard of, once everything is handed in."""
        for service in self._equivocations.values():
            await asyncio.gather(*service._handing)
        queue = self._equivocations[self.peers[ORGANIZER]]._found
        return [queue.get_nowait() for _ in range(queue.qsize())]


@pytest.mark.parametrize("checks", ["off", "on"])
def test_it_is_left_out_and_costs_the_others_its_samples_at_most(tmp_path: Path, checks: str) -> None:
    """What happens in the round itself. Without checks nothing else does."""

    async def check() -> None:
        party = TwoFaced(tmp_path, checks=checks)
        for _ in range(3):
            for result in (await party.results())[:MALLORY]:
                assert (result.outcome, result.detail) == ("refused", "24 of 32 samples")
                assert result.culprits <= {party.peers[MALLORY]}
                assert result.absent.keys() == {party.peers[MALLORY]}
        await asyncio.gather(*(task for service in party._equivocations.values() for task in service._handing))
        assert bool(party.handed_in) == (checks == "on")

    asyncio.run(check())


@pytest.mark.parametrize(("global_batch", "outcome"), [(32, "refused"), (24, "complete")])
def test_with_checks_its_own_two_signatures_convict_it_and_nobody_else(
    tmp_path: Path, global_batch: int, outcome: str
) -> None:
    async def check() -> None:
        party = TwoFaced(tmp_path, global_batch=global_batch)
        began = time.time()
        assert {result.outcome for result in (await party.results())[:MALLORY]} == {outcome}
        found = await party.found()
        assert found
        assert {(each.author, each.step) for each in found} == {(party.peers[MALLORY], 1)}
        one, other = (Pledged.model_validate_json(Entry.from_bytes(each).about) for each in found[0].signed)
        assert abs(one.time - other.time) > 0.5
        assert min(one.time, other.time) > began - 1.0

    asyncio.run(check())


def test_honest_members_that_try_again_are_not_blamed(tmp_path: Path) -> None:
    async def check() -> None:
        party = TwoFaced(tmp_path, global_batch=33)
        party.faces = False
        for _ in range(3):
            assert {result.outcome for result in await party.results()} == {"refused"}
        party.samples = (9,) * 4
        assert {result.outcome for result in await party.results()} == {"complete"}
        assert await party.found() == []
        assert party.handed_in == []

    asyncio.run(check())


@pytest.mark.child
def test_a_member_hands_in_over_the_network_and_a_stranger_cannot(tmp_path: Path) -> None:
    async def hand_in(meeting: Meeting) -> None:
        end = meeting.ends["alice"]  # the organizer's part is played by alice, whom the others know
        here = EquivocationService(end, meeting.to_alice, meeting.to_alice)
        await end.add(here)
        both = Introduced(signed=(ONE, OTHER))
        with pytest.raises(NoAnswer):
            await meeting.ends["stranger"].ask(meeting.to_alice, here, both, HANG)
        assert here._found.empty()
        for signed in ((ONE,), (OTHER,)):
            there = EquivocationService(meeting.ends["mallory"], "", meeting.to_alice)
            there.hand_in([signed])
            await asyncio.gather(*there._handing)
        assert (await asyncio.wait_for(here.next(), HANG)).author == signer("mallory").peer

    assert RUN_ID == "toy-0123456789abcdef", "the one of the introductions"
    Meeting(tmp_path).run(hand_in)
