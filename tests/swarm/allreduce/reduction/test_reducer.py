"""What a reducer makes of the members' values: the mean, and whatever somebody hands in."""

import asyncio

import pytest
import torch

from benchmarks.lib.aggregators import CenteredClip
from benchmarks.lib.party import Party
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce.reduction.reducer import MeanReducer, Reducer, RoundOver


def test_a_reducer_of_ones_own_bounds_what_one_of_four_members_does_to_the_average() -> None:
    torch.manual_seed(0)
    direction = torch.randn(400_000)
    honest = [direction + 0.05 * torch.randn(400_000) for _ in range(3)]
    gradients = [*honest, -50.0 * direction]
    right = torch.stack(honest).mean(dim=0)

    def off(make_reducer: type[Reducer]) -> float:
        party = Party(gradients, [8] * 4, make_reducer=make_reducer)
        in_own_loop(party.meet())
        assert all(member.commit is not None for member in party.members)
        assert all(torch.equal(average, party.averages[0]) for average in party.averages)
        return float((party.averages[0] - right).norm() / right.norm())

    assert off(CenteredClip) < 0.15
    assert off(MeanReducer) > 10.0


def test_the_mean_is_weighted_and_it_does_not_matter_what_comes_first() -> None:
    async def reduce() -> None:
        reducer = MeanReducer([torch.empty(2), torch.empty(1)])
        reducer.add("a", 0, torch.tensor([1.0, 2.0]), 1.0)
        reducer.expect({"a": 1.0, "b": 3.0})
        reducer.add("b", 1, torch.tensor([4.0]), 3.0)
        reducer.add("b", 0, torch.tensor([5.0, 6.0]), 3.0)
        assert (await reducer.result(0)).tolist() == [4.0, 5.0]
        waiting = asyncio.create_task(reducer.result(1))
        await asyncio.sleep(0)
        reducer.abandon()
        with pytest.raises(RoundOver):
            await waiting

    in_own_loop(reduce())
