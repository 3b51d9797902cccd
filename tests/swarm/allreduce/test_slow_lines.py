"""An all-reduce over lines that are slow beside the patience, in simulated time."""

import random

import pytest
import torch

from benchmarks.lib.lines import Lines, SimulatedTime, Wire
from dedloc_kit.swarm.allreduce.streams import Patience
from tests.swarm.allreduce.tapped import Simulated

PATIENCE = Patience(2.0, 4.0)


def test_nobody_is_taken_for_dead_while_its_parts_and_averages_are_on_their_way() -> None:
    torch.manual_seed(0)
    party = Simulated([torch.randn(700_000) for _ in range(5)], (3, 5, 4, 7, 2), compression="4bit", clients=1)
    party.patience = PATIENCE
    simulated = SimulatedTime()
    began = simulated.now
    with simulated.running() as runner:
        party.wires = Lines(simulated, [20_000.0] * 5)
        runner.run(party.meet())
    assert simulated.now - began > 10 * PATIENCE.usual
    for member in party.members:
        assert member.commit == party.members[0].commit
        assert len(member.counted) == 5
        assert not member.culprits | member.named
        assert member.average == party.members[0].average


class Dropping(Wire):
    """What is under way on a stream is lost when an end closes it, as the daemon does it now and then."""

    def close(self) -> None:
        self.abort()


@pytest.mark.parametrize("seed", range(12))
def test_whoever_is_done_first_takes_nothing_with_it_that_others_need(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(2, 7)
    clients = chance.randint(0, count - 2)
    gradients = [torch.full((300_000,), float(number)) for number in range(count)]
    party = Simulated(
        gradients, [1] * count, count, "8bit", clients=clients, organizer=chance.choice([None, 0, 1]), seed=seed
    )
    party.patience = Patience(600.0, 600.0)
    simulated = SimulatedTime()
    began = simulated.now
    with simulated.running() as runner:
        party.wires = Lines(simulated, [chance.uniform(1e5, 1e6) for _ in gradients], wire=Dropping)
        runner.run(party.meet())
    assert [member.commit for member in party.members] == [party.members[0].commit] * count
    assert simulated.now - began < party.patience.usual, "somebody had to ask what was decided"
