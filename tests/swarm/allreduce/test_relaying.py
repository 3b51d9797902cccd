"""Rounds of large groups, whose agreement goes through relays, in simulated time: whoever dies, the others step."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch

from benchmarks.lib.lines import Lines, SimulatedTime
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import MAX_PACKET_BYTES, Kind
from dedloc_kit.swarm.consensus.letters import Letter, Packet
from dedloc_kit.swarm.network.service import Stream
from tests.swarm.allreduce.tapped import Tapped, check_one_step

PATIENCE = Patience(5.0, 9.0)
NO_MORE = 8 * PATIENCE.usual
"""Seconds of a round in which some die."""


@dataclass
class Large(Tapped):
    """On lines of unlike speed."""

    wires: Lines | None = None

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        assert self.wires is not None
        return await self.wires.connect(me, number)


def a_party(count: int, seed: int = 0, clients: int = 40) -> Large:
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(6_000, generator=generator) for _ in range(count)]
    party = Large(gradients, [3] * count, count, "8bit", clients=clients, row=32, organizer=0, seed=seed)
    party.patience = PATIENCE
    return party


def play(party: Large, deaths: Mapping[int, float], *, silently: bool = False) -> tuple[list[object], float]:
    """How it ended for each, and after how many seconds for the last one.

    :param deaths: when a member dies
    :param silently: its streams stay open
    """
    simulated, chance = SimulatedTime(), random.Random(party.seed)

    async def die(member: int, after: float) -> None:
        await asyncio.sleep(after)
        if party.tasks[member].done():
            return
        if silently:
            assert party.wires is not None
            party.wires.silent.add(member)
        else:
            party.kill(member)

    async def story() -> list[object]:
        await party.begin()
        dying = [asyncio.create_task(die(member, after)) for member, after in deaths.items()]
        await asyncio.wait([task for member, task in enumerate(party.tasks) if member not in deaths])
        for task in (*dying, *(party.tasks[member] for member in deaths)):
            task.cancel()
        return list(await party.end())

    began = simulated.now
    with simulated.running() as runner:
        party.wires = Lines(simulated, [chance.uniform(3e5, 3e6) for _ in party.samples])
        outcomes = runner.run(story())
    return outcomes, simulated.now - began


def check(party: Large, outcomes: list[object], dead: set[int]) -> None:
    """All that live took one step with all their samples, and blame no survivor."""
    living = set(range(len(party.samples))) - dead
    took = check_one_step(party, outcomes, 0.1)
    assert living <= set(took)
    for member in living:
        assert party.members[member].culprits <= {f"peer{each}" for each in dead}
        assert len(party.members[member].counted) >= len(living)


def test_in_a_large_group_nobody_has_streams_to_all_and_nobody_is_blamed() -> None:
    party = a_party(100)
    outcomes, seconds = play(party, {})
    check(party, outcomes, set())
    assert seconds < PATIENCE.usual
    assert party.wires is not None
    assert max(party.wires.ends) < 60, "each end of a stream"
    assert max(party.wires.sent) < 1_000_000


@pytest.mark.parametrize("silently", [False, True])
@pytest.mark.parametrize("after", [0.2, 0.8])
def test_when_the_decider_dies_the_others_take_the_step(after: float, silently: bool) -> None:
    party = a_party(70)
    outcomes, seconds = play(party, {party.ranking[0]: after}, silently=silently)
    check(party, outcomes, {party.ranking[0]})
    assert seconds < NO_MORE


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))])
def test_whoever_dies_whenever_the_others_take_the_step(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(70, 100)
    party = a_party(count, seed, count // 2)
    order = [*party.ranking[:3], *chance.sample(range(count), 5)]
    deaths = {chance.choice(order): chance.uniform(0.0, 2.0) for _ in range(chance.choice((1, 2, 3)))}
    outcomes, seconds = play(party, deaths, silently=chance.random() < 0.3)
    check(party, outcomes, set(deaths))
    assert seconds < 2 * NO_MORE


# Packets


def a_packet(letters: int, length: int = 20_000) -> Packet:
    """:param length: of a letter's body"""
    letter = Letter(scope="ab" * 32, root="a", author="b", kind="consensus/report", whole="cd" * 32, body="x" * length)
    return Packet(scope="ab" * 32, root="a", letters=(letter,) * letters, alive=(1, 2))


@pytest.mark.parametrize("letters", [0, 1, 40])
def test_a_long_packet_goes_in_several_messages_and_nothing_of_it_is_lost(letters: int) -> None:
    packet = a_packet(letters)
    messages = wire.packets(packet)
    assert all(len(message) <= MAX_PACKET_BYTES for message in messages)
    found = [wire.read_packet(message[1:]) for message in messages if message[0] == Kind.PACKET]
    assert tuple(letter for each in found for letter in each.letters) == packet.letters
    assert [each.alive for each in found] == [(1, 2), *[()] * (len(found) - 1)]


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00" * 100, b" " * (MAX_PACKET_BYTES + 1)])
def test_what_is_no_packet_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="packet"):
        wire.read_packet(content)
