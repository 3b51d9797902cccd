"""Swarms in virtual time whose groups form by themselves: soon after the last fault every step counts everybody."""

from typing import Any

import pytest

from tests.simulation.gathering.simulation import GatheringSimulation, Process
from tests.simulation.gathering.stories import LIES, STORIES, swarm, tell
from tests.simulation.watch import Violation


@pytest.mark.parametrize("story", STORIES)
def test_all_step_together_again_whatever_has_failed(story: str) -> None:
    for seed in range(6):
        tell(story, seed)


@pytest.mark.soak
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("thousand", range(1, 6))
def test_many_more_seeds(story: str, thousand: int) -> None:
    found = []
    for seed in range(1000 * thousand, 1000 * thousand + 60):
        try:
            tell(story, seed)
        except Violation as error:
            found.append(str(error))
    assert found == []


def test_while_nothing_fails_each_step_counts_everybody_and_comes_at_once() -> None:
    for seed in range(6):
        sim, _ = tell("quiet", seed)
        everybody = frozenset(sim.peers)
        assert [step.counted for step in sim.steps] == [everybody] * len(sim.steps)
        assert len(sim.groups) == len(sim.steps)
        assert max(sim.waits) < 2.5, "a microbatch, a look, and the round"


def test_batches_are_hardly_fuller_than_they_have_to_be() -> None:
    for seed in range(5):
        sim = GatheringSimulation(seed, "overfull")
        swarm(sim, 8)
        sim.run(0)
        samples = [commit.value.samples for commit in sim.commits.values()]
        assert all(sim.wanted <= each < 1.25 * sim.wanted for each in samples)


@pytest.mark.parametrize(("size", "most"), [(24, 300), pytest.param(64, 900, marks=pytest.mark.soak)])
def test_many_peers_of_which_some_cannot_be_reached_find_one_group(size: int, most: int) -> None:
    sim = GatheringSimulation(size, "crowd")
    swarm(sim, size, clients=0.4)
    sim.run(0)
    assert len(sim.groups) == len(sim.steps)
    assert max(sim.waits) < 2.5
    assert sim.world.sent["Stream"] < most, "requests do not grow with the square of the peers"


@pytest.mark.parametrize("lie", LIES)
def test_one_liar_of_five_does_not_stop_the_others(lie: Any) -> None:
    """Its samples are a fifth, and what it costs beyond, it costs mostly once."""
    sim = GatheringSimulation(1, f"liar {lie.__name__}")
    peers = swarm(sim, 6, speed=4.0)
    sim.lie(peers[1], lie)
    sim.world.run(150)
    before = len(sim.steps)
    sim.world.run(300)
    possible = 150 * 16 / sim.wanted
    assert len(sim.steps) - before > 0.6 * possible


def test_a_peer_that_gathers_without_a_timer_is_noticed() -> None:
    sim = GatheringSimulation(1, "timer")
    peers = swarm(sim, 3)
    sim.world.run(5)
    process = peers[1].process
    assert isinstance(process, Process)
    process.gathering.deadline = float("inf")
    with pytest.raises(Violation, match="without a timer"):
        sim.run(10)


def test_one_seed_is_one_story() -> None:
    one, other = tell("anything", 3)[0], tell("anything", 3)[0]
    assert one.trace == other.trace
    assert one.steps == other.steps


def test_a_violation_names_the_line_that_reproduces_it() -> None:
    sim = GatheringSimulation(5, "quiet")
    swarm(sim, 3)
    sim.wanted = 10**6
    with pytest.raises(Violation, match=r"python -m tests\.simulation\.gathering quiet 5"):
        sim.check_together()
