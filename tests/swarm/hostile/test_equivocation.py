"""A member introduces itself to some reducers in one way and to others in another; rounds over sockets, and libp2p."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.swarm.audits.equivocation import Equivocation, EquivocationService, Introduced
from dedloc_kit.swarm.averaging.agreement.roll import Roll
from dedloc_kit.swarm.averaging.allreduce import AllReduce, Patience
from dedloc_kit.swarm.averaging.service import AveragingService, Opening
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import NoAnswer, Stream, decode, encode
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

    def __init__(self, folder: Path, *, checks: str = "on", global_batch: int = 32, rows: Sequence[int] = ()) -> None:
        self.faces = True
        self.handed_in = list[tuple[str, Introduced]]()
        trust = {"checks": checks}
        run = tiny_run(global_batch=global_batch, averaging={"compression": "4bit"}, trust=trust)
        self._equivocations: dict[str, EquivocationService] = {}
        super().__init__(folder, run, [torch.ones(20_000)] * (len(rows) or 4), samples=(8,) * (len(rows) or 4))
        self.rows = tuple(rows)

    def _service(self, signer: Signer, vector: SharedVector) -> AveragingService:
        service = super()._service(signer, vector)
        end: Any = SimpleNamespace(run_id=self._run.run_id, ask=lambda *question: self._ask(signer.peer, *question))
        if self.pledges:
            here = self._equivocations[signer.peer] = EquivocationService(end, signer.peer, self.peer(ORGANIZER))
            service._rules = replace(service._rules, equivocation=here)
        return service

    async def _ask(self, me: str, organizer: str, _: object, question: Introduced, __: float) -> object:
        self.handed_in.append((me, question))
        return await self._equivocations[organizer].answer(me, question)

    @asynccontextmanager
    async def _line(self, me: str, peer: str, _: object, first: bytes) -> AsyncIterator[Stream]:
        if self.faces and (me, peer) == (self.peer(MALLORY), self.peer(FOOLED)):
            opening = Opening.parse(decode(first))
            said = self._signers[MALLORY].open(contribution_kind(self._run.trust), opening.introduction)[1]
            other = self._signers[MALLORY].sign(said.model_copy(update={"time": said.time + 1.0}))
            first = encode(opening.model_copy(update={"introduction": other}))
        async with super()._line(me, peer, None, first) as stream:
            yield stream

    def peer(self, number: int) -> str:
        return str(self._signers[number].peer)

    async def found(self) -> list[Equivocation]:
        """All that the organizer has heard of, once everything is handed in."""
        for service in self._equivocations.values():
            await asyncio.gather(*service._handing)
        queue = self._equivocations[self.peer(ORGANIZER)]._found
        return [queue.get_nowait() for _ in range(queue.qsize())]


@pytest.mark.parametrize("checks", ["off", "on"])
def test_it_is_left_out_and_can_cost_its_samples_in_round_after_round_and_no_member_can_blame_it(
    tmp_path: Path, checks: str
) -> None:
    """What happens in the round itself. Without checks nothing else does."""

    async def check() -> None:
        party = TwoFaced(tmp_path, checks=checks)
        for _ in range(3):
            for result in (await party.results())[:MALLORY]:
                assert (result.outcome, result.detail) == ("refused", "24 of 32 samples")
                assert (result.culprits, result.named) == (frozenset(), frozenset())
                assert result.absent == {party.peer(MALLORY): "was not counted"}
        assert bool(party.handed_in) == (checks == "on")

    asyncio.run(check())


@pytest.mark.parametrize(("global_batch", "outcome"), [(32, "refused"), (24, "complete")])
@pytest.mark.parametrize("rows", [(), (0, 0, 1, 0, 1, 1)], ids=["one group", "rows"])
def test_with_checks_its_own_two_signatures_convict_it_and_nobody_else(
    tmp_path: Path, global_batch: int, outcome: str, rows: tuple[int, ...]
) -> None:
    async def check() -> None:
        party = TwoFaced(tmp_path, global_batch=global_batch + 8 * max(0, len(rows) - 4), rows=rows)
        began = time.time()
        assert {result.outcome for result in await party.results()} == {outcome}
        found = await party.found()
        assert found
        assert {(each.author, each.step) for each in found} == {(party.peer(MALLORY), 1)}
        one, other = (party._signers[0].open(Pledged, each)[1] for each in found[0].signed)
        assert abs(one.time - other.time) > 0.5
        assert min(one.time, other.time) > began - 1.0

    asyncio.run(check())


class LeavesOutTheLast(AllReduce):
    """Whoever leads says so."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        ballot = self._voter.leading.ballot
        if ballot is not None:
            propose = ballot.roll

            def without() -> Roll:
                roll = propose()
                return roll.model_copy(update={"introductions": (*roll.introductions[:-1], b"")})

            ballot.roll = without  # type: ignore[method-assign]


def test_an_honest_member_that_is_left_out_and_tries_again_is_not_blamed_nor_who_hands_in_what_it_said(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        party = TwoFaced(tmp_path)
        party.faces, party.all_reduce = False, LeavesOutTheLast
        for _ in range(3):
            assert {result.outcome for result in await party.results()} == {"refused"}
            assert await party.found() == []
        assert {each.signed for _, each in party.handed_in}, "it is looked at"
        party.all_reduce = AllReduce
        assert {result.outcome for result in await party.results()} == {"complete"}
        assert await party.found() == []

    asyncio.run(check())


class CountsItAllTheSame(AllReduce):
    """Whoever leads puts the last one on the roll as it knows it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        ballot = self._voter.leading.ballot
        if ballot is not None:
            propose = ballot.roll

            def with_it() -> Roll:
                roll = propose()
                name = self.handshake.names[MALLORY]
                return roll.model_copy(update={"introductions": (*roll.introductions[:-1], name)})

            ballot.roll = with_it  # type: ignore[method-assign]


def test_if_its_friend_leads_and_counts_it_all_the_same_it_is_convicted_as_well(tmp_path: Path) -> None:
    async def check() -> None:
        party = TwoFaced(tmp_path, global_batch=24)
        party.all_reduce, party.patience = CountsItAllTheSame, Patience(2.0, 2.0)
        await party.results()
        assert {(each.author, each.step) for each in await party.found()} == {(party.peer(MALLORY), 1)}

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
