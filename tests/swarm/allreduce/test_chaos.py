"""Deaths, cut lines and silence at any moment of a round, many times: never two steps, and one if enough live."""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce.streams import Patience
from tests.swarm.allreduce.tapped import Tapped, check_one_step

ENOUGH = Patience(20.0, 4.0)
"""Deaths are found out at once, for streams break; nobody is given up because this machine is slow."""
SHORT = Patience(0.6, 0.8)
TURNS = (60, 600, 2500)
"""Turns of the event loop within which something happens."""


def a_party(chance: random.Random, patience: Patience) -> Tapped:
    count = chance.choice((2, 3, 3, 4, 5, 5, 6, 7))
    clients = chance.choice((0, 0, 1, 2)) if count > 3 else 0
    size = chance.choice((3_000, 300_000))
    samples = [chance.choice((1, 2, 3, 5)) for _ in range(count)]
    organizer = chance.choice((None, *range(count - clients)))
    torch.manual_seed(count)
    gradients = [torch.randn(size) for _ in range(count)]
    seed = chance.randrange(2**32)
    return Tapped(gradients, samples, clients=clients, organizer=organizer, patience=patience, seed=seed)


async def live_through(
    party: Tapped, chance: random.Random, happenings: Sequence[Callable[[], None]], seconds: float
) -> list[BaseException | None]:
    """All of this happens at some moment; who has not ended after so many seconds is called off."""
    due = sorted((chance.randrange(1, chance.choice(TURNS)), number) for number in range(len(happenings)))
    await party.begin()
    turn = 0
    try:
        async with asyncio.timeout(seconds):
            while not all(task.done() for task in party.tasks):
                turn += 1
                while due and due[0][0] <= turn:
                    happenings[due.pop(0)[1]]()
                await asyncio.sleep(0 if turn < max(TURNS) else 0.005)
    except TimeoutError:
        for task in party.tasks:
            task.cancel()
    return await party.end()


def check_survivors(party: Tapped, victims: set[int], outcomes: Sequence[BaseException | None]) -> None:
    """One step, taken by all that live if they are a quorum with a reducer; nobody of them is to blame."""
    took = check_one_step(party, outcomes)
    living = set(range(len(party.samples))) - victims
    if party.enough(living) and living & set(party.ranking):
        assert living <= set(took), outcomes
    for number in living:
        assert party.members[number].culprits <= {f"peer{victim}" for victim in victims}


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 120), marks=pytest.mark.soak)])
def test_whoever_dies_at_any_moment_the_others_take_one_step_and_blame_no_survivor(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        party = a_party(chance, ENOUGH)
        order = [*party.ranking, *sorted(set(range(len(party.samples))) - set(party.ranking))]
        places = [chance.choice((0, 0, 1, 1, 2, 3)) for _ in range(chance.choice((1, 2, 3)))]
        victims = {order[min(len(order) - 1, place)] for place in places}
        deaths = [partial(party.kill, victim) for victim in sorted(victims)]
        outcomes = in_own_loop(live_through(party, chance, deaths, 60.0))
        check_survivors(party, victims, outcomes)


FIRST, SECOND, CLIENT = 0, 1, 4
"""Whose death it is: the first two in rank, and one that reduces nothing."""


async def dies_at(party: Tapped, victim: int, count: int) -> bool:
    """Whether it had so many messages, sent or received, and died at that one."""
    seen = 0

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        nonlocal seen
        if victim in (sender, receiver):
            seen += 1
            if seen == count:
                party.kill(victim)
        return [message]

    party.tap = tap
    await party.begin()
    async with asyncio.timeout(60.0):
        outcomes = await party.end()
    check_survivors(party, {victim} if seen >= count else set(), outcomes)
    return seen >= count


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("place", [FIRST, SECOND, CLIENT])
@pytest.mark.parametrize("organizer", [None, 1])
def test_at_whichever_message_a_member_dies_the_others_take_one_step(
    organizer: int | None, place: int, stride: int
) -> None:
    torch.manual_seed(0)
    gradients, count = [torch.randn(3_000) for _ in range(5)], 1
    while True:
        party = Tapped(gradients, (3, 0, 5, 4, 7), clients=1, organizer=organizer, patience=ENOUGH)
        victim = 4 if place == CLIENT else party.ranking[place]
        if not in_own_loop(dies_at(party, victim, count)):
            break
        count += stride
    assert count > 10, "its messages were seen"


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 62), marks=pytest.mark.soak)])
def test_whatever_is_cut_or_stands_still_for_a_while_there_are_never_two_steps(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        party = a_party(chance, SHORT)
        everyone = range(len(party.samples))
        delay = chance.choice((0.0, 0.002, 0.02))
        until = dict.fromkeys(everyone, 0.0)

        async def tap(
            sender: int,
            receiver: int,
            message: bytes,
            chance: random.Random = chance,
            delay: float = delay,
            until: dict[int, float] = until,
        ) -> Sequence[bytes]:
            still = max(until[sender], until[receiver]) - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, still) + delay * chance.random())
            return [message]

        party.tap = tap

        def stand_still(party: Tapped = party, chance: random.Random = chance, until: dict[int, float] = until) -> None:
            member = chance.choice((*party.ranking[:2], *until))
            until[member] = asyncio.get_running_loop().time() + chance.choice((0.1, 0.9, 3.0))

        def be_cut(party: Tapped = party, chance: random.Random = chance, everyone: range = everyone) -> None:
            one, other = chance.sample(everyone, 2)
            party.cut([one], [other])

        def die(party: Tapped = party, chance: random.Random = chance, everyone: range = everyone) -> None:
            party.kill(chance.choice((*party.ranking[:2], *everyone)))

        happenings = chance.choices((stand_still, be_cut, die), k=chance.choice((1, 2, 3, 4)))
        check_one_step(party, in_own_loop(live_through(party, chance, happenings, 8.0)))
