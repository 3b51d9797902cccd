"""One round in one process: the mean by samples, the same bits for all who live, or the same refusal for all."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
import torch

from benchmarks.lib.lines import Lines, SimulatedTime
from benchmarks.lib.party import Party
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.agreement import GroupRefused
from dedloc_kit.swarm.allreduce.encoding.codec import decode_all
from dedloc_kit.swarm.allreduce.round import RoundFailed
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.messages import Acceptance, Decided, Proposal
from dedloc_kit.swarm.network.service import Stream
from tests.swarm.allreduce.tapped import Simulated, Tapped, agreed, check_one_step, kind_of, mean_of

SAMPLES = (3, 0, 5, 4, 7, 2, 6, 8, 9)
SIZE = 700_000
PATIENCE = Patience(2.5, 2.5)
LEADER, NEXT, CLIENT = 0, 1, 9
"""Whose death it is: the first two in rank, and one that reduces nothing."""


def test_all_end_with_the_mean_by_samples_and_the_same_bits_with_and_without_compression() -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(300_001) for _ in range(4)]
    samples = [1, 5, 0, 10]
    mean = torch.tensor(samples, dtype=torch.float32) @ torch.stack(gradients) / 16.0
    for compression, error in (("none", 1e-5), ("8bit", 0.02), ("4bit", 0.2), ("sparse", 0.99)):
        party = Party(gradients, samples, global_batch=16, compression=compression)
        check_one_step(party, in_own_loop(party.meet()), error)
        assert all(member.commit is not None for member in party.members)
        assert all(torch.equal(average, party.averages[0]) for average in party.averages)
        assert float((party.averages[0] - mean).norm() / mean.norm()) < error, compression
        assert all(member.average == party.members[0].average for member in party.members)
        assert not any(member.culprits or member.named for member in party.members)


def test_once_all_streams_are_closed_nothing_of_a_round_is_left_to_run() -> None:
    torch.manual_seed(0)
    party = Simulated([torch.randn(1000) for _ in range(5)], SAMPLES[:5], clients=1)
    simulated = SimulatedTime()

    async def meet() -> list[str]:
        check_one_step(party, await party.meet())
        await asyncio.sleep(100.0)
        return [str(task.get_coro()) for task in asyncio.all_tasks() - {asyncio.current_task()}]

    with simulated.running() as runner:
        party.wires = Lines(simulated, [1e6] * 5)
        assert runner.run(meet()) == []


def test_a_reducer_that_stands_still_before_it_begins_is_not_awaited_longer_than_in_the_middle_of_a_round() -> None:
    class Standing(Simulated):
        async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
            if still in (me, number):
                await asyncio.Event().wait()
            return await super().connect(me, number)

    torch.manual_seed(0)
    patience = Patience(3.0, 30.0)
    party = Standing([torch.randn(300_000) for _ in range(5)], SAMPLES[:5], clients=1, patience=patience)
    still, simulated = party.ranking[-1], SimulatedTime()

    async def meet() -> tuple[list[BaseException | None], float]:
        await party.begin(but=[still])
        outcomes = await party.end()
        return outcomes, simulated.now

    with simulated.running() as runner:
        party.wires = Lines(simulated, [1e6] * 5)
        began = simulated.now
        outcomes, ended = runner.run(meet())
    assert {*range(5)} - {still} <= {*check_one_step(party, outcomes)}
    assert ended - began < 2 * patience.usual


def test_where_nobody_has_to_bring_samples_the_average_of_none_is_zero() -> None:
    for compression in ("none", "8bit", "4bit", "sparse"):
        party = Party([torch.ones(1000)] * 4, [0] * 4, global_batch=0, compression=compression, organizer=0)
        in_own_loop(party.meet())
        assert all(member.commit is not None for member in party.members)
        assert not any(average.any() for average in party.averages)


def test_a_group_with_too_few_samples_is_refused_alike_by_all() -> None:
    party = Party([torch.ones(1000)] * 3, [4, 4, 4], global_batch=13)
    outcomes = in_own_loop(party.meet())
    assert [str(outcome) for outcome in outcomes] == ["12 of 13 samples"] * 3
    assert all(isinstance(outcome, GroupRefused) for outcome in outcomes)
    assert not any(member.culprits or member.named for member in party.members)


def a_party(count: int = 5, *, clients: int = 1, organizer: int | None = 1, compression: str = "none") -> Tapped:
    torch.manual_seed(0)
    samples = SAMPLES[:count]
    gradients = [torch.randn(SIZE) for _ in range(count)]
    return Tapped(gradients, samples, compression=compression, clients=clients, organizer=organizer, patience=PATIENCE)


def check(party: Tapped, living: Sequence[int], outcomes: Sequence[object]) -> set[int]:
    """All of these took the step, and count if they bring samples or are the coordinator; who else counts."""
    took = check_one_step(party, outcomes, 1e-4 if party.compression == "none" else 0.3)
    assert set(living) <= set(took), outcomes
    counted = {int(entry.peer.removeprefix("peer")) for entry in party.members[living[0]].counted}
    assert {n for n in living if party.samples[n]} <= counted, "a survivor's samples do not count"
    return counted - set(living)


When = Callable[[int, int, int, bytes], bool]
"""Whether it is time: the member, who sends to whom, and what."""


def sends(member: int, sender: int, receiver: int, message: bytes) -> bool:
    """In the middle of sending: a later part goes to somebody, or comes from somebody."""
    return member in (sender, receiver) and kind_of(message) == Kind.PART and wire.read_part(message[1:])[0] >= 8


def has_proposal(member: int, sender: int, receiver: int, message: bytes) -> bool:
    """It learns who counts, or tells it."""
    return member in (sender, receiver) and agreed(message, Proposal) is not None


def has_averages(member: int, sender: int, receiver: int, message: bytes) -> bool:
    """Some of its averages have gone, or some of others have come."""
    return member in (sender, receiver) and kind_of(message) == Kind.AVERAGE


def votes(member: int, sender: int, receiver: int, message: bytes) -> bool:
    """It holds the average, or learns that another one does."""
    return member in (sender, receiver) and agreed(message, Acceptance) is not None


async def dies(party: Tapped, victim: int, when: When | None) -> list[BaseException | None]:
    """A round in which a member dies as soon as this is so; without, before it has begun."""

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if when is not None and not party.tasks[victim].done() and when(victim, sender, receiver, message):
            party.kill(victim)
        return [message]

    party.tap = tap
    await party.begin(() if when is not None else (victim,))
    if when is None:
        party.kill(victim)
    async with asyncio.timeout(60.0):
        outcomes = await party.end()
    assert when is None or isinstance(outcomes[victim], asyncio.CancelledError), "it lived to the end"
    return outcomes


@pytest.mark.parametrize("when", [None, sends, has_proposal, has_averages, votes])
@pytest.mark.parametrize("who", [LEADER, NEXT, CLIENT])
def test_whoever_dies_whenever_it_does_the_others_end_with_the_same_average(who: int, when: When | None) -> None:
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


def test_of_those_left_out_each_reducer_tells_what_it_saw_itself() -> None:
    party = a_party(8, clients=3)
    never, mute, dead = 5, 6, 7
    seen = set[int]()

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if sender in (mute, dead) and kind_of(message) == Kind.PART:
            if sender == dead:
                seen.add(receiver)
            if len(seen) == 5 and not party.tasks[dead].done():
                party.kill(dead)
            return []
        return [] if sender == mute else [message]

    async def meet() -> list[BaseException | None]:
        party.tap = tap
        await party.begin(but=(never,))
        party.kill(never)
        async with asyncio.timeout(60.0):
            await asyncio.wait(party.tasks[:5])
        party.tasks[mute].cancel()
        return await party.end()

    assert check(party, range(5), in_own_loop(meet())) == set()
    for number in range(5):
        assert party.members[number].absent == {
            f"peer{never}": "did not come",
            f"peer{mute}": "fell silent",
            f"peer{dead}": "left in the middle",
        }


def test_two_reducers_die_and_the_third_leads_to_the_end() -> None:
    party = a_party(7)
    first, second = party.ranking[:2]

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        for victim, when in ((first, sends), (second, has_proposal)):
            if not party.tasks[victim].done() and when(victim, sender, receiver, message):
                party.kill(victim)
        return [message]

    party.tap = tap
    outcomes = in_own_loop(party.meet())
    gone = {first, second}
    assert check(party, [number for number in range(7) if number not in gone], outcomes) <= gone


def test_averages_travel_while_gradients_still_do_and_are_taken_once_it_is_proposed_who_counts() -> None:
    party = a_party(3, clients=0, organizer=0, compression="4bit")
    quick, slow = party.ranking[1:]
    first = asyncio.Event()
    travelling = False

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        nonlocal travelling
        if sender == quick and kind_of(message) == Kind.AVERAGE:
            travelling |= not first.is_set()
            first.set()
        last = max(number for number, owner in enumerate(party.plan.first.makers) if owner == slow)
        if receiver == slow and kind_of(message) == Kind.PART and wire.read_part(message[1:])[0] == last:
            await first.wait()
        return [message]

    party.tap = tap
    assert check(party, range(3), in_own_loop(party.meet())) == set()
    assert travelling
    assert not any(member.culprits or member.named for member in party.members)


@pytest.mark.parametrize("when", [sends, has_proposal, votes])
def test_of_a_group_that_is_cut_in_two_one_side_takes_the_step_and_with_the_other_again_all_hold_the_same(
    when: When,
) -> None:
    """The others take the step that they missed with the average of those who took it, as catching up does, and bring
    again what did not count in it."""
    party = a_party(9, clients=0)
    leader = party.ranking[0]
    one = [leader, *(number for number in range(9) if number != leader)][:5]
    other = [number for number in range(9) if number not in one]

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if not party.cuts and when(leader, sender, receiver, message):
            party.cut(one, other)
        return [message]

    party.tap = tap
    outcomes = in_own_loop(party.meet())
    took = check_one_step(party, outcomes)
    assert took, "more than half are together, and go on"
    assert all(isinstance(outcomes[number], RoundFailed) for number in range(9) if number not in took)

    first = party.members[took[0]]
    average = decode_all(tuple(first.average), SIZE)
    assert torch.equal(average, party.averages[took[0]])
    counted = {int(entry.peer.removeprefix("peer")) for entry in first.counted}
    # Each has computed as much again; for the mean it does not matter that it is the same.
    samples = [SAMPLES[number] * (1 if number in counted else 2) for number in range(9)]
    joined = Tapped(party.gradients, samples, clients=0, organizer=1, patience=Patience(30.0, 30.0))
    assert check(joined, range(9), in_own_loop(joined.meet())) == set()
    given = sum(entry.samples for entry in first.counted) * average + sum(samples) * joined.averages[0]
    whole = 2 * torch.tensor(SAMPLES, dtype=torch.float32) @ torch.stack(list(party.gradients))
    assert torch.allclose(given, whole, atol=1e-3), "samples are lost, or count twice"


@pytest.mark.parametrize(("organizer", "goes_on"), [(0, [True, False]), (1, [False, True]), (None, [False, False])])
def test_of_a_pair_that_side_goes_on_where_the_coordinator_is(organizer: int | None, goes_on: list[bool]) -> None:
    party = a_party(2, clients=0, organizer=organizer)
    party.samples = (4, 4)

    async def meet() -> list[BaseException | None]:
        await party.begin()
        party.cut([0], [1])
        async with asyncio.timeout(30.0):
            return await party.end()

    outcomes = in_own_loop(meet())
    assert [not isinstance(outcome, RoundFailed) for outcome in outcomes] == goes_on, outcomes
    assert len(check_one_step(party, outcomes)) == sum(goes_on)


@pytest.mark.parametrize("told", [[], [NEXT]])
def test_a_step_that_was_decided_before_the_decider_died_is_taken_by_all_others(told: list[int]) -> None:
    party = a_party()
    leader, hear = party.ranking[0], [party.ranking[place] for place in told]

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        hushed = agreed(message, Decided) is not None or kind_of(message) == Kind.OVER
        return [] if sender == leader and hushed and receiver not in hear else [message]

    async def meet() -> list[BaseException | None]:
        party.tap = tap
        await party.begin()
        async with asyncio.timeout(60.0):
            await asyncio.wait([party.tasks[leader]])
            party.kill(leader)
            return await party.end()

    check(party, range(5), in_own_loop(meet()))


def test_who_comes_when_the_group_stands_already_takes_its_step_too() -> None:
    party = a_party()
    party.patience = Patience(2.5, 0.5)
    late = 4

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if kind_of(message) == Kind.GROUP and party.tasks[late].done():
            party.tasks[late] = asyncio.create_task(party.members[late].complete())
        return [message]

    async def meet() -> list[BaseException | None]:
        party.tap = tap
        await party.begin(but=(late,))
        outcomes = await party.end()
        return [*outcomes[:late], await party.tasks[late]]

    outcomes = in_own_loop(meet())
    assert check(party, range(4), outcomes) == set()
    assert check_one_step(party, outcomes) == [0, 1, 2, 3, late]
    assert torch.allclose(party.averages[late], mean_of(party, party.members[0].counted), atol=1e-4)


@pytest.mark.parametrize("count", [2, 5])
def test_who_alone_cannot_be_reached_by_anybody_ends_and_the_others_take_the_step(count: int) -> None:
    party = a_party(count, clients=0, organizer=0)
    lonely = count - 1
    party.cuts = {frozenset((lonely, other)) for other in range(lonely)}
    outcomes = in_own_loop(party.meet())
    assert isinstance(outcomes[lonely], RoundFailed)
    assert check_one_step(party, outcomes) == [*range(lonely)]
    assert not party.members[lonely].culprits, "who never came may be well"


def test_a_round_that_is_broken_off_tells_the_others_at_once() -> None:
    party = a_party(3, clients=0)
    party.patience = Patience(60.0, 60.0)

    async def meet() -> list[BaseException | None]:
        async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
            if sends(2, sender, receiver, message):
                party.tasks[2].cancel()
            return [message]

        party.tap = tap
        await party.begin()
        async with asyncio.timeout(30.0):
            return await party.end()

    outcomes = in_own_loop(meet())
    assert isinstance(outcomes[2], asyncio.CancelledError)
    assert check_one_step(party, outcomes) == [0, 1]
    assert all(party.members[number].absent == {"peer2": "left in the middle"} for number in (0, 1))


def test_a_vote_that_cannot_be_written_costs_this_peer_the_round_and_nobody_else() -> None:
    party = a_party(3, clients=0, organizer=1)
    full = party.ranking[2]

    async def meet() -> list[BaseException | None]:
        party.prepare()
        party.voters[full].mute = True
        return await party.meet()

    outcomes = in_own_loop(meet())
    assert isinstance(outcomes[full], RoundFailed)
    assert "the vote cannot be written" in str(outcomes[full])
    assert {*check_one_step(party, outcomes)} == {*party.ranking[:2]}
