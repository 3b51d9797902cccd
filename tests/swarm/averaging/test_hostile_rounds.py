"""Members of one all-reduce that lie to the others: a step all the same, or none, and never two."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import pytest
import torch

from benchmarks.lib.party import GROUP, Party, PlainSigner, keep_the_certificate
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.averaging.agreement.roll import Call, Fault, Held, Proposal, Roll
from dedloc_kit.swarm.averaging.allreduce import AllReduce, Patience
from dedloc_kit.swarm.averaging.encoding.codec import codec_of
from dedloc_kit.swarm.averaging.reduction.parts import Parts
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says, part, say

SAMPLES = (3, 2, 5, 4, 7)
LIAR = 3
"""Leads this group, as `Plan.ranking` has it."""


def without(roll: Roll, member: int, name: bytes = b"") -> Roll:
    names = list(roll.introductions)
    names[member] = name
    return Roll(**{**roll.model_dump(), "introductions": tuple(names)})


class SignsAsAnother(AllReduce):
    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]

        def propose(roll: Roll) -> bytes:
            return PlainSigner("peer1").sign(Proposal(group=GROUP, ballot=roll.ballot, roll=roll.name, average=b""))

        self._voter._votes.propose = propose  # type: ignore[method-assign]


class AltersTheRoll(AllReduce):
    change: Callable[[Roll], Roll]

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        ballot = self._voter.leading.ballot
        assert ballot is not None
        propose = ballot.roll
        ballot.roll = lambda: type(self).change(propose())  # type: ignore[method-assign]


class NamesWhoIsNotThere(AltersTheRoll):
    change = staticmethod(lambda roll: without(roll, 4, bytes(32)))


class NamesAStranger(AltersTheRoll):
    """One more than the group has."""

    change = staticmethod(lambda roll: Roll(**{**roll.model_dump(), "introductions": (*roll.introductions, bytes(32))}))


class DealsToAClient(AltersTheRoll):
    change = staticmethod(lambda roll: Roll(**{**roll.model_dump(), "reducers": (*roll.reducers, 4)}))


class LeavesOut(AltersTheRoll):
    change = staticmethod(lambda roll: without(roll, 4))


class TellsTwoRolls(AllReduce):
    """First one that leaves out the last member.

    :cvar whom: both
    """

    whom = frozenset(range(len(SAMPLES)))

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        take = self._voter.take_roll

        def take_and_lie(held: Held) -> None:
            other = without(held.roll, 4)
            lie = say(Says.ROLL, Held(roll=other, signed=self._voter._votes.propose(other)))
            for member, link in self.links.down.items():
                if member in self.whom:
                    link.post(lie)
            take(held)

        self._voter.take_roll = take_and_lie  # type: ignore[method-assign]


class TellsOneTwoRolls(TellsTwoRolls):
    """All others have the right one alone, and are done with it."""

    whom = frozenset({len(SAMPLES) - 1})


class SaysNothing(AllReduce):
    """It takes what comes, and never answers."""

    async def serve(self, sender: str, introduction: bytes, stream: object) -> None:
        await asyncio.Event().wait()


class SendsTwice(AllReduce):
    """All that it should, and each part once more."""

    async def _send(self, reducer: int, link: Link) -> None:
        plain = link.send

        async def twice(message: bytes) -> None:
            for _ in range(2 if message[0] == Says.PART else 1):
                await plain(message)

        link.send = twice  # type: ignore[method-assign]
        await super()._send(reducer, link)


class SendsForAnother(AllReduce):
    async def _send(self, reducer: int, link: Link) -> None:
        other = next(number for number, owner in enumerate(self._owners) if owner != reducer)
        encoded = self._coding.sent.encode(self._coding.codec.gradients, self._values[other], 0)
        await link.send(part(other, encoded.SerializeToString()))
        await asyncio.Event().wait()


class SendsDense(AllReduce):
    """All values exactly, where few bits are agreed."""

    async def _send(self, reducer: int, link: Link) -> None:
        self._coding = replace(self._coding, codec=codec_of("none"))
        await super()._send(reducer, link)


class SendsEverythingToAll(AllReduce):
    """Each reducer gets its own share, and then the shares of all others."""

    async def _send(self, reducer: int, link: Link) -> None:
        for number in sorted(range(len(self._owners)), key=lambda number: self._owners[number] != reducer):
            begin = self.plan.chunks[number][0]
            way = self._coding.of_gradients(begin, self.plan.layout)
            encoded = self._coding.sent.encode(way, self._values[number], begin)
            await link.send(part(number, encoded.SerializeToString()))
        await asyncio.Event().wait()


class SendsNonsenseOnceItIsReported(AllReduce):
    """The leader gets the last part when all others have everything, and have been told nonsense after it."""

    async def _send(self, reducer: int, link: Link) -> None:
        if reducer == LIAR:
            while not all(number in self._told for number in range(3)):
                await asyncio.sleep(0.01)
        share, sent, plain = self._owners.count(reducer), 0, link.send

        async def counted(message: bytes) -> None:
            nonlocal sent
            await plain(message)
            sent += message[0] == Says.PART

        link.send = counted  # type: ignore[method-assign]
        sending = asyncio.create_task(super()._send(reducer, link))
        while sent < share or not self._window.empty:
            await asyncio.sleep(0.01)
        if reducer != LIAR:
            await asyncio.sleep(0.1)
            await link.send(part(0, b"nonsense"))
            self._told.add(reducer)
        await sending

    @cached_property
    def _told(self) -> set[int]:
        return set()


class LeadsAlone(AllReduce):
    """It sends every reducer nonsense, and then calls a ballot in which nobody but it reduces."""

    async def _send(self, reducer: int, link: Link) -> None:
        await link.send(part(0, b"nonsense"))
        self._told.add(reducer)
        if len(self._told) == len(self.plan.reducers) - 1:
            self._voter.heads.living = lambda: (self.mine,)  # type: ignore[method-assign]
            self._voter.leading.call(0)
        await asyncio.Event().wait()

    @cached_property
    def _told(self) -> set[int]:
        return set()


class HidesWhatWasAcknowledged(AllReduce):
    """It takes over, and proposes a roll of its own whatever it was answered."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        leading = self._voter.leading
        propose = leading._propose

        def propose_anew() -> None:
            if leading.ballot is not None:
                leading.ballot.resumed = None
            propose()

        leading._propose = propose_anew  # type: ignore[method-assign]


class ClaimsAnAverage(AllReduce):
    """It says that it has acknowledged an average that there is not."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        voter = self._voter
        join = voter.join

        def lie(call: Call) -> None:
            if voter.held is not None and voter.held.roll.ballot < call.ballot:
                voter.acknowledged = voter._votes.acknowledge(voter.held.roll, bytes(32))
                voter._acknowledged_roll = voter.held
            join(call)

        voter.join = lie  # type: ignore[method-assign]


def a_party(kinds: dict[int, type[AllReduce]]) -> Party:
    torch.manual_seed(0)
    gradients = [torch.randn(600_000) for _ in SAMPLES]
    party = Party(gradients, SAMPLES, clients=1, organizer=1, patience=Patience(2.0, 3.0), kinds=kinds)
    assert party.ranking[0] == LIAR
    return party


def meet(liar: int, kind: type[AllReduce], but: tuple[int, ...] = ()) -> tuple[Party, list[BaseException | None]]:
    party = a_party({liar: kind})

    async def run() -> list[BaseException | None]:
        await party.begin(but)
        async with asyncio.timeout(60.0):
            outcomes = await asyncio.gather(
                *(task for number, task in enumerate(party.tasks) if number != liar), return_exceptions=True
            )
        party.tasks[liar].cancel()
        await party.end()
        outcomes.insert(liar, None)
        return outcomes

    return party, in_own_loop(run())


def assert_one_step(party: Party, honest: tuple[int, ...], outcomes: list[BaseException | None]) -> set[int]:
    """All of these took the same step, with the average of the roll; who counts."""
    assert [outcomes[number] for number in honest] == [None] * len(honest), outcomes
    introductions = party.members[honest[0]].introductions
    assert introductions is not None
    counted = [int(peer.removeprefix("peer")) for peer in introductions.contributions]
    weights = torch.tensor([float(SAMPLES[number]) for number in counted])
    mean = weights @ torch.stack([party.gradients[number] for number in counted]) / weights.sum()
    for number in honest:
        assert torch.allclose(party.averages[number], mean, atol=1e-5)
        assert torch.equal(party.averages[number], party.averages[honest[0]])
    return set(counted)


@pytest.mark.parametrize(
    "kind", [SignsAsAnother, NamesAStranger, DealsToAClient, TellsTwoRolls, TellsOneTwoRolls, SaysNothing, LeadsAlone]
)
def test_a_leader_that_lies_or_is_mute_is_named_and_the_next_one_leads(kind: type[AllReduce]) -> None:
    party, outcomes = meet(LIAR, kind)
    honest = (0, 1, 2, 4)
    counted = assert_one_step(party, honest, outcomes)
    assert set(honest) <= counted
    assert kind is not LeadsAlone or LIAR not in counted, "it sent them nonsense"
    blamed = [party.members[number].culprits for number in honest]
    assert any(blamed), blamed
    assert all(culprits <= {f"peer{LIAR}"} for culprits in blamed), blamed


def test_a_leader_that_counts_somebody_who_never_came_is_named_and_the_next_one_leads() -> None:
    party, outcomes = meet(LIAR, NamesWhoIsNotThere, but=(4,))
    honest = (0, 1, 2)
    assert 4 not in assert_one_step(party, honest, outcomes)
    assert all(f"peer{LIAR}" in party.members[number].culprits for number in honest)


def test_whom_a_leader_leaves_out_though_it_was_there_takes_the_step_and_doubts_the_leader() -> None:
    party, outcomes = meet(LIAR, LeavesOut)
    assert assert_one_step(party, (0, 1, 2, 4), outcomes) == {0, 1, 2, LIAR}
    assert party.members[4].doubted == {f"peer{LIAR}"}
    assert not any(party.members[number].doubted for number in (0, 1, 2))
    for number in (0, 1, 2):
        assert party.members[number].absent == {"peer4": "was not counted"}, "nothing was amiss with it"


@pytest.mark.parametrize("kind", [SendsTwice, SendsForAnother])
def test_who_sends_a_part_twice_or_for_anothers_share_is_left_out_and_named(kind: type[AllReduce]) -> None:
    party, outcomes = meet(4, kind)
    assert assert_one_step(party, (0, 1, 2, 3), outcomes) == {0, 1, 2, 3}
    for number in range(4):
        assert party.members[number].culprits == {"peer4"}
        why = party.members[number].absent["peer4"]
        # What is for another could have been dealt out anew: for a while it is not nonsense.
        assert why == "sent nonsense" or (kind is SendsForAnother and why == "fell silent")


@pytest.mark.parametrize("compression", ["4bit", "sparse"])
def test_who_sends_more_than_the_runs_compression_needs_is_left_out_and_named(compression: str) -> None:
    party = a_party({4: SendsDense})
    party.compression = compression
    outcomes = in_own_loop(party.meet())
    assert outcomes[:4] == [None] * 4
    for number in range(4):
        assert torch.equal(party.averages[number], party.averages[0])
        assert party.members[number].culprits == {"peer4"}
        assert party.members[number].absent["peer4"] == "sent nonsense"


def test_nobody_makes_a_leader_seem_to_lie_that_counts_what_was_reported() -> None:
    party, outcomes = meet(4, SendsNonsenseOnceItIsReported)
    assert assert_one_step(party, (0, 1, 2, 3), outcomes) == {0, 1, 2, 3, 4}
    for number in range(3):
        assert party.members[number].culprits == {"peer4"}


def test_of_one_that_sends_every_share_to_everyone_no_reducer_keeps_more_than_twice_its_own() -> None:
    party = a_party({4: SendsEverythingToAll})
    kept: dict[int, int] = {}

    def watch(reducer: int, parts: Parts) -> None:
        take = parts.take

        def counted(member: int, number: int, content: bytes, brought: Contribution) -> None:
            take(member, number, content, brought)
            kept[reducer] = max(kept.get(reducer, 0), *map(len, parts._kept.values()))

        parts.take = counted  # type: ignore[method-assign]

    async def run() -> list[BaseException | None]:
        party.prepare()
        for number in range(4):
            watch(number, party.members[number].parts)
        await party.begin()
        async with asyncio.timeout(60.0):
            await asyncio.wait(party.tasks[:4])
        party.tasks[4].cancel()
        return await party.end()

    outcomes = in_own_loop(run())
    assert_one_step(party, (0, 1, 2, 3), outcomes)
    shares = {number: party.plan.first.owners[0].count(number) for number in range(4)}
    assert all(0 < kept[number] <= 2 * shares[number] for number in range(4)), (kept, shares)


def test_whoever_takes_over_and_hides_that_a_step_was_taken_is_named_and_the_others_take_that_step() -> None:
    party = a_party({})
    leader, liar = party.ranking[:2]
    party.kinds[liar] = HidesWhatWasAcknowledged

    async def run() -> list[BaseException | None]:
        party.prepare()
        keep_the_certificate(party.members[leader])
        await party.begin()
        async with asyncio.timeout(60.0):
            assert await party.tasks[leader] is None
            party.kill(leader)
            await asyncio.wait([task for number, task in enumerate(party.tasks) if number != liar])
        party.tasks[liar].cancel()
        return await party.end()

    outcomes = in_own_loop(run())
    honest = tuple(number for number in range(5) if number != liar)
    assert_one_step(party, honest, outcomes)
    assert all(f"peer{liar}" in party.members[number].culprits for number in party.ranking[2:])


def test_who_claims_an_average_that_there_is_not_makes_nobody_take_it() -> None:
    party = a_party({4: ClaimsAnAverage})

    async def run() -> list[BaseException | None]:
        await party.begin()
        async with asyncio.timeout(60.0):
            while party.members[4]._voter.roll is None:
                await asyncio.sleep(0)
            party.kill(LIAR)
            await asyncio.wait(party.tasks[:3])
        party.tasks[4].cancel()
        return await party.end()

    outcomes = in_own_loop(run())
    if outcomes[0] is None:
        assert_one_step(party, (0, 1, 2), outcomes)
    else:
        assert all(isinstance(outcome, Fault) for outcome in outcomes[:3]), outcomes
