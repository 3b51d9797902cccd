"""What any all-reduce must do: one step with the mean by samples and equal bits, or none, whatever fails whenever."""

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import permutations

import pytest
import torch

from tests.swarm.allreduce.contract import COORDINATOR, HANG, Engine, Moment, Party, Setup, Trace
from tests.swarm.allreduce.rounds import RoundEngine

ENGINES: dict[str, Engine] = {"round": RoundEngine()}
GROUPS = {
    "reached": Setup(),
    "firewalled": Setup(samples=(0, 4, 5, 3, 4, 5), firewalled=2),
    "rows": Setup(samples=(0, 4, 5, 3, 4, 5, 3, 4, 5, 4), firewalled=3, row=4),
}
SHORT = 2.5
"""Seconds of patience where silence has to be noticed."""
ERRORS = {"none": 1e-5, "8bit": 0.02, "4bit": 0.2, "sparse": 0.99}
"""Of the average, by compression, relative to the mean."""
Faults = Mapping[Moment, Callable[[Party], None]]

groups = pytest.mark.parametrize("setup", GROUPS.values(), ids=list(GROUPS))


@pytest.fixture(params=list(ENGINES.values()), ids=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


def seeds(quick: int, all_of_them: int) -> pytest.MarkDecorator:
    slow = (pytest.param(seed, marks=pytest.mark.soak) for seed in range(quick, all_of_them))
    return pytest.mark.parametrize("seed", [*range(quick), *slow])


def play(
    engine: Engine, setup: Setup, faults: Faults | None = None, trace: Trace | None = None, but: Collection[int] = ()
) -> Party:
    """One round, to its end for everybody.

    :param faults: and when they happen
    :param but: members that never come
    """
    trace = trace or Trace(engine.kind)

    async def meet() -> Party:
        party = engine.party(setup, trace)
        for moment, fault in (faults or {}).items():
            trace.at(moment, lambda fault=fault: fault(party))  # type: ignore[misc]
        async with asyncio.timeout(HANG):
            await party.begin(but)
            await party.end()
        return party

    return engine.run(meet())


def moments(engine: Engine, setup: Setup) -> list[Moment]:
    """All moments of an undisturbed round."""
    trace = Trace(engine.kind)
    play(engine, setup, trace=trace)
    return trace.moments


def kill(member: int) -> Callable[[Party], None]:
    return lambda party: party.kill(member)


def cut(some: Collection[int], others: Collection[int]) -> Callable[[Party], None]:
    return lambda party: party.cut(some, others)


def check_one_step(party: Party, setup: Setup) -> set[int]:
    """All who stepped took the same step, with the mean of those who count in it. Returns who stepped."""
    stepped = [member for member in setup.members if party.outcomes[member] == "stepped"]
    for member in stepped:
        assert party.counted(member) == party.counted(stepped[0])
        assert torch.equal(party.averages[member], party.averages[stepped[0]])
    if stepped:
        mean = setup.mean(party.counted(stepped[0]))
        error = float((party.averages[stepped[0]] - mean).norm() / mean.norm())
        assert error < ERRORS[setup.compression]
    return set(stepped)


def check_step_without(party: Party, setup: Setup, failed: Collection[int] = ()) -> None:
    """All others step, their samples count, and none of them is blamed by another."""
    others = set(setup.members) - set(failed)
    assert check_one_step(party, setup) >= others, party.outcomes
    for member in others:
        assert party.counted(member) >= others
        assert party.blamed(member) <= set(failed)


# Without a fault


@groups
@pytest.mark.parametrize("compression", ERRORS)
def test_all_take_the_mean_by_samples_and_the_same_bits(engine: Engine, setup: Setup, compression: str) -> None:
    setup = replace(setup, compression=compression)
    check_step_without(play(engine, setup), setup)


def test_a_batch_that_is_too_small_is_refused_by_all_and_nobody_is_blamed(engine: Engine) -> None:
    setup = Setup(minimum=sum(Setup().samples) + 1)
    party = play(engine, setup)
    assert set(party.outcomes) == {"too few"}
    assert not any(party.blamed(member) for member in setup.members)


def test_members_behind_firewalls_count_and_never_exchange_a_message(engine: Engine) -> None:
    setup, trace = GROUPS["firewalled"], Trace(engine.kind)
    check_step_without(play(engine, setup, trace=trace), setup)
    hidden = set(setup.members[-setup.firewalled :])
    assert trace.moments
    assert not any({moment.sender, moment.receiver} <= hidden for moment in trace.moments)


@seeds(4, 40)
def test_slow_lines_cost_nobody_the_step(engine: Engine, seed: int) -> None:
    chance = random.Random(seed)
    setup = replace(chance.choice(list(GROUPS.values())), size=chance.choice((3_000, 300_000)))
    turns = {pair: chance.choice((0, 1, 10, 100)) for pair in permutations(setup.members, 2)}
    trace = Trace(engine.kind, lambda sender, receiver: turns[sender, receiver])
    check_step_without(play(engine, setup, trace=trace), setup)


# Deaths


def check_death(engine: Engine, setup: Setup, moment: Moment, victim: int) -> None:
    trace = Trace(engine.kind)
    party = play(engine, setup, {moment: kill(victim)}, trace)
    assert moment in trace.moments
    check_step_without(party, setup, {victim})


@groups
@seeds(6, 6)
def test_whoever_dies_after_some_message_the_others_take_the_step(engine: Engine, setup: Setup, seed: int) -> None:
    moment = random.Random(seed).choice(moments(engine, setup))
    for victim in (moment.sender, moment.receiver):
        check_death(engine, setup, moment, victim)


@pytest.mark.soak
@pytest.mark.parametrize("size", [3_000, 300_000])
@groups
def test_whoever_dies_after_any_message_the_others_take_the_step(engine: Engine, setup: Setup, size: int) -> None:
    setup = replace(setup, size=size)
    for moment in moments(engine, setup):
        for victim in (moment.sender, moment.receiver):
            check_death(engine, setup, moment, victim)


@seeds(5, 60)
def test_two_die_and_the_others_take_the_step(engine: Engine, seed: int) -> None:
    """The coordinator may be one of them; the others are a quorum by number and by samples."""
    setup, chance = Setup(samples=(0, 3, 4, 3, 4, 3, 4, 4), size=3_000, firewalled=2), random.Random(seed)
    deaths = dict(zip(chance.sample(moments(engine, setup), 2), chance.sample(setup.members, 2), strict=True))
    trace = Trace(engine.kind)
    party = play(engine, setup, {moment: kill(victim) for moment, victim in deaths.items()}, trace)
    check_step_without(party, setup, {victim for moment, victim in deaths.items() if moment in trace.moments})


# Silence


@pytest.mark.parametrize("absent", [COORDINATOR, 2, 4], ids=["coordinator", "reached", "firewalled"])
def test_one_that_never_comes_is_left_out(engine: Engine, absent: int) -> None:
    setup = Setup(size=3_000, firewalled=1)
    if absent in setup.members[-setup.firewalled :]:  # nobody finds out that it cannot be reached
        setup = replace(setup, patience=SHORT)
    party = play(engine, setup, but={absent})
    check_step_without(party, setup, {absent})
    assert all(absent not in party.counted(member) for member in setup.members if member != absent)


@seeds(2, 24)
def test_one_that_freezes_costs_the_others_no_step_and_takes_no_other_one_when_it_returns(
    engine: Engine, seed: int
) -> None:
    setup, chance = Setup(size=3_000, patience=SHORT), random.Random(seed)
    moment = chance.choice(moments(engine, setup))
    frozen = chance.choice((moment.sender, moment.receiver))

    async def meet() -> Party:
        trace = Trace(engine.kind)
        party = engine.party(setup, trace)
        trace.at(moment, lambda: party.freeze(frozen))
        async with asyncio.timeout(HANG):
            await party.begin()
            for member in set(setup.members) - {frozen}:
                await party.over(member)
            party.thaw(frozen)
            await party.end()
        return party

    check_step_without(engine.run(meet()), setup, {frozen})


# Lines


@seeds(2, 40)
def test_of_a_group_that_is_cut_in_two_the_larger_part_takes_the_step_and_the_other_no_other_one(
    engine: Engine, seed: int
) -> None:
    setup, chance = Setup(samples=(0, 3, 4, 3, 4, 3, 4), size=3_000, patience=SHORT), random.Random(seed)
    smaller = set(chance.sample(setup.members[1:], 2))
    moment = chance.choice(moments(engine, setup))
    party = play(engine, setup, {moment: cut(set(setup.members) - smaller, smaller)})
    check_step_without(party, setup, smaller)


@seeds(2, 24)
def test_two_halves_never_take_a_step_each(engine: Engine, seed: int) -> None:
    setup, chance = Setup(samples=(0, 4, 3, 4, 3, 4), size=3_000, patience=SHORT), random.Random(seed)
    half = set(chance.sample(setup.members, 3))
    moment = chance.choice(moments(engine, setup))
    check_one_step(play(engine, setup, {moment: cut(set(setup.members) - half, half)}), setup)


@seeds(3, 40)
def test_lines_that_break_never_lead_to_two_steps(engine: Engine, seed: int) -> None:
    """Of two that do not reach each other, one may be left out, and take the step in the next round."""
    chance = random.Random(seed)
    setup = replace(chance.choice(list(GROUPS.values())), size=3_000, patience=SHORT)
    when = chance.sample(moments(engine, setup), 3)
    check_one_step(play(engine, setup, {moment: cut(*_pair(setup, chance)) for moment in when}), setup)


def _pair(setup: Setup, chance: random.Random) -> tuple[set[int], set[int]]:
    one, other = chance.sample(setup.members, 2)
    return {one}, {other}
