"""Deaths, cut lines and silence at any moment of a round, many times: never two steps, and one if enough live."""

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch

from benchmarks.lib.party import Party
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.averaging.allreduce import Patience
from dedloc_kit.swarm.network.service import Stream

ENOUGH = Patience(20.0, 20.0)
"""Deaths are found out at once, for streams break; nobody is given up because this machine is slow."""
SHORT = Patience(0.6, 0.8)
TURNS = (60, 600, 2500)
"""Turns of the event loop within which something happens."""


def a_party(chance: random.Random, patience: Patience) -> Party:
    count = chance.choice((2, 3, 3, 4, 5, 5, 6, 7))
    clients = chance.choice((0, 0, 1, 2)) if count > 3 else 0
    size = chance.choice((3_000, 300_000))
    samples = [chance.choice((1, 2, 3, 5)) for _ in range(count)]
    organizer = chance.choice((None, *range(count)))
    torch.manual_seed(count)
    gradients = [torch.randn(size) for _ in range(count)]
    return Party(gradients, samples, clients=clients, organizer=organizer, patience=patience)


async def live_through(
    party: Party, chance: random.Random, happenings: Sequence[Callable[[], None]], seconds: float
) -> None:
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


def check_that_there_are_not_two_steps(party: Party, outcomes: list[BaseException | None]) -> list[int]:
    took = [number for number, outcome in enumerate(outcomes) if outcome is None]
    known = [party.members[number].introductions for number in took]
    for number, introductions in zip(took, known, strict=True):
        assert torch.equal(party.averages[number], party.averages[took[0]])
        assert introductions == known[0]
    if known and known[0] is not None:
        counted = [int(peer.removeprefix("peer")) for peer in known[0].contributions]
        weights = torch.tensor([float(party.samples[number]) for number in counted])
        mean = weights @ torch.stack([party.gradients[number] for number in counted]) / weights.sum()
        assert torch.allclose(party.averages[took[0]], mean, atol=1e-4)
    return took


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 80), marks=pytest.mark.soak)])
def test_whoever_dies_at_any_moment_the_others_take_one_step_and_blame_no_survivor(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        party = a_party(chance, ENOUGH)
        order = [*party.ranking, *set(range(len(party.samples))) - set(party.ranking)]
        victims = {
            order[min(len(order) - 1, chance.choice((0, 0, 1, 1, 2, 3)))] for _ in range(chance.choice((1, 2, 3)))
        }

        async def meet(party: Party, chance: random.Random, victims: set[int]) -> list[BaseException | None]:
            deaths = [partial(party.kill, victim) for victim in victims]
            await live_through(party, chance, deaths, 60.0)
            return await party.end()

        outcomes = in_own_loop(meet(party, chance, victims))
        took = check_that_there_are_not_two_steps(party, outcomes)
        living = set(range(len(party.samples))) - victims
        if party.votes.enough(living) and living & set(party.ranking):
            assert living <= set(took), (seed, outcomes)
        for number in living & set(took):
            assert party.members[number].culprits <= {f"peer{victim}" for victim in victims}, seed


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 52), marks=pytest.mark.soak)])
def test_whatever_is_cut_or_stands_still_for_a_while_there_are_never_two_steps(seeds: range) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        party = a_party(chance, SHORT)

        async def meet(party: Party, chance: random.Random) -> list[BaseException | None]:
            everyone = range(len(party.samples))
            moving = [asyncio.Event() for _ in everyone]
            for event in moving:
                event.set()
            delay = chance.choice((0.0, 0.002, 0.02))

            def wrap(stream: Stream, member: int) -> None:
                send, receive = stream.send, stream.receive

                async def sent(content: bytes | memoryview) -> None:
                    await moving[member].wait()
                    await send(content)

                async def received(limit: int) -> bytes:
                    message = await receive(limit)
                    await moving[member].wait()
                    await asyncio.sleep(delay * chance.random())
                    return message

                stream.send, stream.receive = sent, received  # type: ignore[method-assign]

            def stand_still() -> None:
                event = moving[chance.choice((*party.ranking[:2], *everyone))]
                event.clear()
                asyncio.get_running_loop().call_later(chance.choice((0.1, 0.9, 3.0)), event.set)

            def be_cut() -> None:
                one, other = chance.sample(everyone, 2)
                party.cut([one], [other])

            def die() -> None:
                party.kill(chance.choice((*party.ranking[:2], *everyone)))

            party.wrap = wrap  # type: ignore[method-assign]
            happenings = chance.choices((stand_still, be_cut, die), k=chance.choice((1, 2, 3, 4)))
            await live_through(party, chance, happenings, 8.0)
            return await party.end()

        check_that_there_are_not_two_steps(party, in_own_loop(meet(party, chance)))
