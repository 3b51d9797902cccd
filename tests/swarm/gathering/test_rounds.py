"""The stories of agreement, told with groups that form by themselves: still no fork, and the run goes on."""

import pytest

from dedloc_kit.swarm.consensus.records import Commit
from tests.simulation.gathering.rounds import GatheredSimulation, tell_rounds
from tests.simulation.stories import STORIES, swarm
from tests.simulation.watch import Violation

QUICK = ("quiet", "short_batches", "forgetful", "bad_disks", "firewalls", "leavers", "crash_at_reset", "churn")


@pytest.mark.parametrize("story", QUICK)
def test_peers_that_find_their_groups_agree_whatever_fails(story: str) -> None:
    for seed in range(2):
        tell_rounds(story, seed)


@pytest.mark.soak
@pytest.mark.parametrize("story", STORIES)
def test_many_more_seeds(story: str) -> None:
    found = []
    for seed in range(1000, 1015):
        try:
            tell_rounds(story, seed)
        except Violation as error:
            found.append(str(error))
    assert found == []


def test_each_step_counts_all_peers_and_needs_one_group() -> None:
    for seed in range(3):
        sim = GatheredSimulation(seed, minimum=60, name="whole")
        peers = swarm(sim, 6)
        sim.run(60)
        commits = [record for record in sim.best().chain.records if isinstance(record, Commit)]
        assert len(commits) > 5
        assert all(len(commit.value.counted) == len(peers) for commit in commits[1:])
        assert len(sim.attempts) <= len(commits) + 2
