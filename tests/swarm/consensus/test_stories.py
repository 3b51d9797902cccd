"""Swarms in virtual time under failures: no fork, no half average, nothing counted twice, and the run goes on."""

from dataclasses import replace
from typing import Any

import pytest

from dedloc_kit.swarm.consensus.messages import Acceptance, Decided, Group, Promised, Proposal, decode, encode
from dedloc_kit.swarm.consensus.records import Commit
from tests.simulation.simulation import Policy, Simulation
from tests.simulation.stories import ROUNDS, STORIES, swarm, tell, violation
from tests.simulation.world import Line

LONG = ("minority", "coordinator_away")
RUNS = tuple(name for name in STORIES if name not in (*ROUNDS, *LONG))


@pytest.mark.parametrize("story", ROUNDS)
@pytest.mark.parametrize("hundred", range(5))
def test_rounds_agree_whatever_fails(story: str, hundred: int) -> None:
    """250 seeds."""
    for seed in range(100 * hundred, 100 * hundred + 3):
        tell(story, seed)


@pytest.mark.parametrize("story", RUNS)
def test_small_runs_recover(story: str) -> None:
    """50 seeds."""
    for seed in range(5):
        tell(story, seed)


SOAK = [
    (story, 1000 + 50 * block)
    for stories, blocks in ((ROUNDS, 17), (RUNS, 8), (LONG, 3))
    for story in stories
    for block in range(blocks)
]


@pytest.mark.soak
@pytest.mark.parametrize(("story", "first"), SOAK)
def test_many_more_seeds(story: str, first: int) -> None:
    """20,000, in blocks of 50."""
    found = [violation(story, seed) for seed in range(first, first + 50)]
    assert not [each for each in found if each]


# Defences of the world around the state machines: without them, these seeds fail. With them, they do not.
PINNED = (
    ("forgetful", 2, Policy(incarnation=False), "fork"),
    ("forgetful", 17, Policy(incarnation=False), "fork"),
    ("resume_below", 7, Policy(persist=False), "fork"),
    ("resume_below", 25, Policy(persist=False), "fork"),
    ("only_volunteer_gone", 1, Policy(resets=False), "no step"),
)


@pytest.mark.parametrize(("story", "seed", "policy", "kind"), PINNED)
def test_each_defence_is_needed(story: str, seed: int, policy: Policy, kind: str) -> None:
    assert violation(story, seed) is None
    assert kind in (violation(story, seed, policy) or "nothing")


FORKS = (
    *(("overlapping", seed) for seed in (1, 2, 3)),  # a quorum of a quarter
    *(("resume_below", seed) for seed in (7, 18, 44, 59)),  # voting in an instance that the vote file has passed
    *(("resume_below", seed) for seed in (4, 9)),  # promises that do not name what was accepted
    *(("lying_decider", seed) for seed in (0, 2, 3)),  # another value without a proof
    *(("unwritten_votes", seed) for seed in (1, 10, 15)),  # votes that are sent though they could not be written
    *(("same_term", seed) for seed in (1, 3, 4, 5)),  # resets ordered by their number alone
)
"""Seeds that fork without one defence of the state machines; `tests.mutations` takes it out."""
STALLS = (
    *(("short_batches", seed) for seed in (10068, 10272)),  # four small pieces never filled a batch
    ("anything", 3),  # a reducer without a share never reported
    ("bad_disks", 50051),  # a voter without a disk was waited for
)


@pytest.mark.parametrize(("story", "seed"), [*FORKS, *STALLS])
def test_a_seed_that_forked_or_stalled_does_not_any_more(story: str, seed: int) -> None:
    assert violation(story, seed) is None


def second_round(kill_at: int | None, victim: str) -> tuple[Simulation, float, int]:
    """A coordinator and five volunteers; after the first commit somebody dies as the n-th message is delivered.

    Returns when the second commit was made, and how many messages later than the first one.
    """
    sim = Simulation(7, name="sweep")
    swarm(sim, 5, speed=4)
    sim.world.run(60, stop=lambda: len(sim.watch.first) == 1)
    before = sim.world.delivered
    if kill_at is not None:
        sim.world.triggers[before + kill_at] = lambda *_: kill(sim, victim)
    sim.world.run(120, stop=lambda: len(sim.watch.first) == 2)
    assert len(sim.watch.first) == 2
    return sim, sim.world.now, sim.world.delivered - before


def kill(sim: Simulation, victim: str) -> None:
    """The decider of the round that goes on, or one of its other reducers; the coordinator else."""
    participants = [process.participant for process in sim.processes() if process.participant is not None]
    decider = participants[0].decider if participants else sim.coordinator
    reducers = [name for each in participants[:1] for name in each.group.reducers if name != decider]
    sim.crash(sim.peers[decider if victim == "decider" else (reducers or ["p3"])[0]])


@pytest.mark.parametrize("victim", ["decider", "reducer"])
def test_a_death_at_any_message_costs_seconds(victim: str) -> None:
    _, normal, messages = second_round(None, victim)
    costs = {}
    for at in range(1, messages + 1):
        sim, when, _ = second_round(at, victim)
        costs[at] = when - normal
        if at % 10 == 0:
            sim.run(sim.world.now + 1)  # and all is as it should be
    assert messages > 100
    assert max(costs.values()) < 12, costs  # silence is noticed after 5 s; a batch that lost a share fills for longer
    assert sorted(costs.values())[messages // 2] < 3


def test_a_seed_is_told_twice_in_the_same_way() -> None:
    (one, first), (other, second) = tell("anything", 11), tell("anything", 11)
    assert first == second
    assert one.trace == other.trace
    assert one.watch.first == other.watch.first
    assert len(one.watch.first) > 5


def test_a_violation_names_the_line_that_reproduces_it() -> None:
    assert "python -m tests.simulation forgetful 2" in (violation("forgetful", 2, Policy(incarnation=False)) or "")


def test_messages_survive_the_wire() -> None:
    """Everything that is said is what its bytes say."""
    sim = Simulation(3, name="wire")
    peers = swarm(sim, 4)
    seen: set[str] = set()

    def through_bytes(to: str, message: Any) -> Any:
        if hasattr(message, "wire") and hasattr(message, "group"):
            seen.add(message.wire)
            return decode(encode(message))
        return message

    for peer in peers:
        sim.lie(peer, through_bytes)
    sim.world.at(20, sim.pause, peers[1], 8)
    sim.run(40)
    assert {Promised.wire, Proposal.wire, Acceptance.wire, Decided.wire} <= seen
    assert Group.wire == "consensus/group"


def commits_of(sim: Simulation) -> list[Commit]:
    return [record for record in sim.best().chain.records if isinstance(record, Commit)]


@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_left_out_because_its_line_is_a_hundred_times_slower(seed: int) -> None:
    sim = Simulation(seed, minimum=40, name="slow")
    sim.options = replace(sim.options, limit=600.0)
    slow = Line(25e3, 25e3, 0.1)  # its parts need 32 s, and the patience is 10 s
    for role in ("coordinator", *["volunteer"] * 4):
        sim.add(role, Line(2.5e6, 2.5e6), 4)
    sim.add("volunteer", slow, 4, firewalled=True)  # it reduces nothing
    sim.world.run(300)
    commits = commits_of(sim)
    assert len(commits) >= 3
    for commit in commits:
        group = sim.groups[commit.accepted[0].epoch.group]
        able = [entry.peer for entry in group.members if entry.samples or entry.peer == "p0"]
        assert [entry.peer for entry in commit.value.counted] == able
    assert any("p5" in sim.groups[c.accepted[0].epoch.group].peers for c in commits)
    assert not [event for event in sim.trace if event[1] == "aborts"]


def next_step(sim: Simulation, after: float, until: float) -> float | None:
    """Seconds until the first commit after that."""
    sim.world.run(until)
    return min((when - after for when in sim.watch.first.values() if when > after), default=None)


@pytest.mark.parametrize(("goodbye", "within"), [(True, (5, 20)), (False, (55, 80))])
def test_after_the_goodbye_of_all_a_newcomer_need_not_wait_a_minute(goodbye: bool, within: tuple[int, int]) -> None:
    for seed in range(5):
        sim = Simulation(seed, policy=Policy(goodbye=goodbye), name="goodbye")
        peers = swarm(sim, 2, speed=3)
        sim.world.at(20, sim.leave, peers[1])
        sim.world.at(20.5, sim.leave, peers[2])
        sim.world.at(22, sim.add, "volunteer", None, 3)
        assert within[0] < (next_step(sim, 22, 150) or 0) < within[1]


@pytest.mark.parametrize("stored", [True, False])
def test_voters_that_restart_together_still_hold_the_average_that_they_voted_for(stored: bool) -> None:
    """Without the coordinator, whose reset would help, and with nobody else who holds it."""
    assert any(stops_after_restart(seed, Policy(stored=stored)) for seed in range(10)) is not stored


def stops_after_restart(seed: int, policy: Policy) -> bool:
    """Whether two volunteers stop that both restart as the first vote of a round arrives."""
    sim = Simulation(seed, policy=policy, name="restart")
    coordinator, *volunteers = swarm(sim, 2, speed=3)
    sim.world.run(20)
    sim.crash(coordinator)

    def look(source: str, target: str, message: Any) -> None:
        if not isinstance(message, Acceptance):
            sim.world.triggers[sim.world.delivered + 1] = look
            return
        for peer in volunteers:
            sim.world.after(0, sim.crash, peer)
            sim.world.after(2, sim.restart, peer)

    sim.world.triggers[sim.world.delivered + 1] = look
    sim.world.run(60, stop=lambda: not sim.volunteers())
    return not sim.volunteers() and next_step(sim, sim.world.now, sim.world.now + 60) is None


@pytest.mark.soak
@pytest.mark.parametrize("size", [24, 63])
def test_larger_swarms_agree(size: int) -> None:
    for seed in range(3):
        sim = Simulation(seed, minimum=4 * size, name="large")
        peers = swarm(sim, size)
        for victim in sim.random.sample(peers[1:], size // 10):
            sim.world.at(sim.random.uniform(5, 40), sim.crash, victim)
        sim.world.at(20, sim.crash, peers[0])
        assert sim.run(60) < 60
        assert len(sim.watch.first) > 5
