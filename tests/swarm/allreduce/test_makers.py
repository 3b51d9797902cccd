"""Who made an average is known where it counts: nobody is blamed for the average of another reducer."""

import asyncio
from collections.abc import Sequence

import torch

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.messages import Decided
from tests.swarm.allreduce.tapped import Tapped, agreed, check_one_step, kind_of

SAMPLES = (3, 5, 4, 7)


def a_party() -> Tapped:
    torch.manual_seed(0)
    return Tapped([torch.randn(400_000) for _ in SAMPLES], SAMPLES, patience=Patience(2.5, 2.5))


def test_each_chunk_is_made_by_the_one_who_reduces_it() -> None:
    party = a_party()
    outcomes = in_own_loop(party.meet())
    assert check_one_step(party, outcomes) == [0, 1, 2, 3]
    owners = tuple(party.plan.members[owner] for owner in party.plan.first.makers)
    assert {member.makers for member in party.members} == {owners}


def test_an_average_that_is_decided_after_its_reducer_died_is_still_its_own() -> None:
    party = a_party()
    dead = party.ranking[0]

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        hushed = agreed(message, Decided) is not None or kind_of(message) == Kind.OVER
        return [] if sender == dead and hushed else [message]

    async def meet() -> list[BaseException | None]:
        party.tap = tap
        await party.begin()
        async with asyncio.timeout(60.0):
            await asyncio.wait([party.tasks[dead]])
            party.kill(dead)
            return await party.end()

    outcomes = in_own_loop(meet())
    living = [number for number in range(len(SAMPLES)) if number != dead]
    assert [n for n in check_one_step(party, outcomes) if n != dead] == living
    owners = tuple(party.plan.members[owner] for owner in party.plan.first.makers)
    assert party.plan.members[dead] in owners
    assert {party.members[number].makers for number in living} == {owners}
