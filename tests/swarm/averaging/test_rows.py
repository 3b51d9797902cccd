"""All-reduce over rows."""

import asyncio

import pytest
import torch

from benchmarks.lib.party import Party
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.averaging.allreduce import Patience

PATIENCE = Patience(3.0, 4.0)


def a_party(rows, size=300_001, compression="none", organizer=None):
    torch.manual_seed(0)
    gradients = [torch.randn(size) for _ in rows]
    samples = [1 + (7 * n) % 5 for n in range(len(rows))]
    return Party(gradients, samples, compression=compression, rows=rows, organizer=organizer, patience=PATIENCE)


@pytest.mark.parametrize("side", [3, 4])
@pytest.mark.parametrize("compression", ["none", "4bit"])
def test_all_rows_end_with_the_same_average(side, compression):
    rows = [n % side for n in range(side * side)]
    party = a_party(rows, compression=compression)

    async def run():
        async with asyncio.timeout(20):
            return await party.meet()

    outcomes = in_own_loop(run())
    assert outcomes == [None] * len(rows)
    weights = torch.tensor(party.samples, dtype=torch.float32)
    mean = weights @ torch.stack(list(party.gradients)) / weights.sum()
    assert all(torch.equal(a, party.averages[0]) for a in party.averages)
    assert all(m.messages == party.members[0].messages for m in party.members)
    error = float((party.averages[0] - mean).norm() / mean.norm())
    print(error)
    assert error < (1e-6 if compression == "none" else 0.3)
