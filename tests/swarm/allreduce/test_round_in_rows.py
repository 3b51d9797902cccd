"""A round in rows, with real values: what a large group gains, and what it must not lose."""

from collections import Counter

import pytest
import torch

from benchmarks.lib.party import Party
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from tests.swarm.allreduce.contract import Setup, Trace
from tests.swarm.allreduce.rounds import RoundEngine
from tests.swarm.allreduce.test_contract import play

SAMPLES = (0, 4, 5, 3, 4, 5, 3, 4, 5, 4, 2, 6)
SIZE = 100_000


def test_parts_stay_in_a_row_and_sums_leave_it() -> None:
    setup, engine = Setup(samples=SAMPLES, size=SIZE, row=4, firewalled=3), RoundEngine()
    trace = Trace(engine.kind)
    play(engine, setup, trace=trace)
    rows = party_of().plan.rows
    counts = Counter((moment.kind, rows[moment.sender] == rows[moment.receiver]) for moment in trace.moments)
    assert counts["part", True]
    assert counts["sum", False]
    assert counts["average", True] > counts["average", False] > 0
    assert not counts["part", False]
    assert not counts["sum", True]


def party_of(compression: str = "4bit", codings: list[Coding] | None = None) -> Party:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(SIZE, generator=generator) for _ in SAMPLES]
    party = Party(gradients, SAMPLES, compression=compression, clients=3, row=4, organizer=0)
    party.codings = codings or []
    return party


@pytest.mark.parametrize("compression", ["4bit", "8bit"])
def test_what_parts_sums_and_averages_lose_is_made_good_in_later_rounds(compression: str) -> None:
    rounds, codings, total = 6, list[Coding](), torch.zeros(SIZE)
    weights = torch.tensor([float(samples) for samples in SAMPLES])
    mean = weights @ torch.stack(list(party_of().gradients)) / weights.sum()
    errors = []
    for count in range(1, rounds + 1):
        party = party_of(compression, codings)
        in_own_loop(party.meet())
        codings = party.codings
        for coding in codings:
            coding.sent.commit()
            coding.averaged.commit()
        assert all(torch.equal(average, party.averages[0]) for average in party.averages)
        total += party.averages[0]
        errors.append(float((total / count - mean).norm() / mean.norm()))
    assert errors[-1] < errors[0] / 3
