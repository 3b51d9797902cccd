"""One all-reduce in one process: the mean by samples, the same bits for all who live, or the same refusal for all."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from benchmarks.lib.party import Party, keep_the_certificate
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.averaging.agreement.handshake import GroupRefused
from dedloc_kit.swarm.averaging.agreement.roll import Fault
from dedloc_kit.swarm.averaging.allreduce import AllReduce, Patience
from dedloc_kit.swarm.averaging.encoding.codec import decode_all
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says, read_numbered

SAMPLES = (3, 0, 5, 4, 7, 2, 6, 8, 9)
SIZE = 700_000
PATIENCE = Patience(2.5, 2.5)
LEADER, NEXT, CLIENT = 0, 1, 9
"""Whose death it is: the first two of the ranking, and one that reduces nothing."""


def test_all_end_with_the_mean_by_samples_and_the_same_bits_with_and_without_compression() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(300_001) for _ in range(4)]
    samples = [1, 5, 0, 10]
    mean = torch.tensor(samples, dtype=torch.float32) @ torch.stack(gradients) / 16.0
    for compression, error in (("none", 1e-5), ("8bit", 0.02), ("4bit", 0.2), ("sparse", 0.99)):
        party = Party(gradients, samples, global_batch=16, compression=compression)
        assert in_own_loop(party.meet()) == [None] * 4
        assert all(torch.equal(average, party.averages[0]) for average in party.averages)
        assert float((party.averages[0] - mean).norm() / mean.norm()) < error, compression
        assert all(member.messages == party.members[0].messages for member in party.members)


@pytest.mark.parametrize("rows", [(), (0, 0, 1, 1)])
def test_where_nobody_has_to_bring_samples_the_average_of_none_is_zero(rows: Sequence[int]) -> None:
    for compression in ("none", "8bit", "4bit", "sparse"):
        party = Party([torch.ones(1000)] * 4, [0] * 4, global_batch=0, compression=compression, rows=rows)
        assert in_own_loop(party.meet()) == [None] * 4
        assert not any(average.any() for average in party.averages)


def test_a_group_with_too_few_samples_is_refused_alike_by_all() -> None:
    party = Party([torch.ones(1000)] * 3, [4, 4, 4], global_batch=13)
    outcomes = in_own_loop(party.meet())
    assert [str(outcome) for outcome in outcomes] == ["12 of 13 samples"] * 3
    assert all(isinstance(outcome, GroupRefused) for outcome in outcomes)
    assert not any(member.culprits or member.named for member in party.members)


def a_party(count: int = 5, *, clients: int = 1, organizer: int | None = 1, compression: str = "none") -> Party:
    torch.manual_seed(0)
    samples = SAMPLES[:count]
    gradients = [torch.randn(SIZE) for _ in range(count)]
    return Party(gradients, samples, compression=compression, clients=clients, organizer=organizer, patience=PATIENCE)


def check(party: Party, living: Sequence[int], outcomes: Sequence[object]) -> set[int]:
    """All of these have the same average, which is that of the roll, with all of them on it; who else is on it."""
    assert [outcomes[number] for number in living] == [None] * len(living), outcomes
    introductions = [party.members[number].introductions for number in living]
    first = introductions[0]
    assert first is not None
    assert all(each is not None and each.signed == first.signed for each in introductions)
    counted = [int(peer.removeprefix("peer")) for peer in first.contributions]
    assert set(living) <= set(counted), "a survivor's samples do not count"
    weights = torch.tensor([float(party.samples[number]) for number in counted])
    mean: Tensor = weights @ torch.stack([party.gradients[number] for number in counted]) / weights.sum()
    for number in living:
        assert torch.equal(party.averages[number], party.averages[living[0]])
    error = float((party.averages[living[0]] - mean).norm() / mean.norm())
    assert error < (1e-5 if party.compression == "none" else 0.3)
    return set(counted) - set(living)


async def dies(party: Party, victim: int, when: Callable[[AllReduce], bool] | None) -> list[BaseException | None]:
    """A round in which a member dies as soon as this is so; without, before it has begun."""
    await party.begin(() if when is not None else (victim,))
    member = party.members[victim]
    async with asyncio.timeout(30.0):
        while when is not None and not when(member):
            assert not party.tasks[victim].done(), "it lives to the end"
            await asyncio.sleep(0)
        party.kill(victim)
        return await party.end()


def sends(member: AllReduce) -> bool:
    """In the middle of sending: some of its first parts are on their way."""
    return len(member._sent) >= 2


def has_sent(member: AllReduce) -> bool:
    """All of its parts have come, as far as it knows."""
    sent = len(member._sent) >= len(member.plan.chunks) - len(member.parts.mine)
    return sent and member._window.empty


def knows_the_roll(member: AllReduce) -> bool:
    return member._voter.roll is not None


def has_averages(member: AllReduce) -> bool:
    """Some averages of the roll have come."""
    return knows_the_roll(member) and len(member.averages.missing()) < len(member.plan.chunks)


def holds_the_average(member: AllReduce) -> bool:
    return member._voter.acknowledged is not None


@pytest.mark.parametrize("when", [None, sends, has_sent, knows_the_roll, has_averages, holds_the_average])
@pytest.mark.parametrize("who", [LEADER, NEXT, CLIENT])
def test_whoever_dies_whenever_it_does_the_others_end_with_the_same_average_of_those_on_the_roll(
    who: int, when: Callable[[AllReduce], bool] | None
) -> None:
    party = a_party(compression="4bit" if when is has_averages else "none")
    victim = party.ranking[who] if who != CLIENT else 4
    outcomes = in_own_loop(dies(party, victim, when))
    living = [number for number in range(5) if number != victim]
    also = check(party, living, outcomes)
    assert also <= {victim}
    assert when is not None or not also, "who never came does not count"
    for number in living:
        member = party.members[number]
        assert member.culprits | member.named <= {f"peer{victim}"}, "no survivor is blamed"


class Mute(AllReduce):
    """It comes, and then nothing more is heard of it."""

    async def _send(self, reducer: int, link: Link) -> None:
        await asyncio.Event().wait()


def test_of_those_left_out_each_reducer_tells_what_it_saw_itself() -> None:
    party = a_party(8, clients=3)
    party.kinds |= {6: Mute, 7: Mute}

    async def meet() -> list[BaseException | None]:
        await party.begin(but=(5,))
        async with asyncio.timeout(30.0):
            while not all(7 in party.members[number].handshake.met for number in range(5)):
                await asyncio.sleep(0)
            party.kill(7)
            await asyncio.wait(party.tasks[:5])
        party.tasks[6].cancel()
        return await party.end()

    outcomes = in_own_loop(meet())
    assert check(party, range(5), outcomes) == set()
    for number in range(5):
        assert party.members[number].absent == {
            "peer5": "did not come",
            "peer6": "fell silent",
            "peer7": "left in the middle",
        }


def test_two_reducers_die_and_the_third_leads_to_the_end() -> None:
    async def meet(party: Party) -> list[BaseException | None]:
        first, second = party.ranking[:2]
        await party.begin()
        async with asyncio.timeout(30.0):
            while not sends(party.members[first]):
                await asyncio.sleep(0)
            party.kill(first)
            while not knows_the_roll(party.members[second]):
                await asyncio.sleep(0)
            party.kill(second)
            return await party.end()

    party = a_party(7)
    outcomes = in_own_loop(meet(party))
    gone = set(party.ranking[:2])
    assert check(party, [number for number in range(7) if number not in gone], outcomes) <= gone


class Waits(AllReduce):
    """It sends the last part of a share only when averages of others have come."""

    async def _send(self, reducer: int, link: Link) -> None:
        last, plain = max(number for number, owner in enumerate(self._owners) if owner == reducer), link.send

        async def send(message: bytes) -> None:
            while message[0] == Says.PART and read_numbered(message[1:])[0] == last and not self.averages._early:
                await asyncio.sleep(0)
            await plain(message)

        link.send = send  # type: ignore[method-assign]
        await super()._send(reducer, link)


def test_averages_travel_while_gradients_still_do_and_are_taken_once_the_roll_says_so() -> None:
    party = a_party(3, clients=0, compression="4bit")
    party.kinds[2] = Waits
    outcomes = in_own_loop(party.meet())
    assert check(party, range(3), outcomes) == set()
    assert not any(member.culprits or member.named for member in party.members)


@pytest.mark.parametrize("when", [sends, knows_the_roll, holds_the_average])
def test_of_a_group_that_is_cut_in_two_one_side_takes_the_step_and_with_the_other_again_all_hold_the_same(
    when: Callable[[AllReduce], bool],
) -> None:
    """The others take the step that they missed with the average of those who took it, as `CatchUp` does, and bring
    again what did not count in it."""

    async def meet(party: Party) -> list[BaseException | None]:
        await party.begin()
        async with asyncio.timeout(60.0):
            while not when(party.members[party.ranking[0]]):
                await asyncio.sleep(0)
            party.cut(range(5), range(5, 9))
            return await party.end()

    party = a_party(9, clients=0)
    outcomes = in_own_loop(meet(party))
    check_one_step(party, outcomes)
    assert [outcome for outcome in outcomes[:5] if outcome is None], "more than half are together, and go on"

    took = outcomes.index(None)
    average = decode_all(tuple(party.members[took].messages), SIZE)
    assert torch.equal(average, party.averages[took])
    introductions = party.members[took].introductions
    assert introductions is not None
    counted = {int(peer.removeprefix("peer")) for peer in introductions.contributions}
    # Each has computed as much again; for the mean it does not matter that it is the same.
    samples = [SAMPLES[number] * (1 if number in counted else 2) for number in range(9)]
    joined = Party(party.gradients, samples, clients=0, patience=Patience(30.0, 30.0))
    assert check(joined, range(9), in_own_loop(joined.meet())) == set()
    given = introductions.samples * average + sum(samples) * joined.averages[0]
    whole = 2 * torch.tensor(SAMPLES, dtype=torch.float32) @ torch.stack(list(party.gradients))
    assert torch.allclose(given, whole, atol=1e-3), "samples are lost, or count twice"


@pytest.mark.parametrize(("organizer", "goes_on"), [(0, [True, False]), (1, [False, True]), (None, [False, False])])
def test_of_a_pair_that_side_goes_on_where_the_coordinator_is(organizer: int | None, goes_on: list[bool]) -> None:
    async def meet(party: Party) -> list[BaseException | None]:
        await party.begin()
        party.cut([0], [1])
        async with asyncio.timeout(30.0):
            return await party.end()

    party = a_party(2, clients=0, organizer=organizer)
    party.samples = (3, 5)
    outcomes = in_own_loop(meet(party))
    assert [outcome is None for outcome in outcomes] == goes_on, outcomes
    for outcome, goes in zip(outcomes, goes_on, strict=True):
        assert goes or isinstance(outcome, Fault)


@pytest.mark.parametrize("told", [[], [LEADER + 2]])
def test_a_step_that_the_leader_took_before_it_died_is_taken_over_by_all_others(told: list[int]) -> None:
    async def meet(party: Party) -> list[BaseException | None]:
        await party.begin()
        leader = party.ranking[0]
        hears = [party.ranking[place] for place in told]
        for number, member in enumerate(party.members):
            if number == leader:
                keep_the_certificate(member, hears)
        async with asyncio.timeout(30.0):
            assert await party.tasks[leader] is None
            party.kill(leader)
            return await party.end()

    party = a_party()
    outcomes = in_own_loop(meet(party))
    check(party, range(5), outcomes)


def check_one_step(party: Party, outcomes: Sequence[object]) -> None:
    """Those who took a step took the same."""
    took = [number for number, outcome in enumerate(outcomes) if outcome is None]
    assert all(isinstance(outcome, Fault) for outcome in outcomes if outcome is not None), outcomes
    assert all(torch.equal(party.averages[number], party.averages[took[0]]) for number in took)
    assert len({party.members[number]._voter.roll.name for number in took}) <= 1  # type: ignore[union-attr]
