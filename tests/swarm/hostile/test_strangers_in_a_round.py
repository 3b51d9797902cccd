"""Fewer than half of a round are hostile: what they claim and send moves its average no further than it may."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.events import StepDone
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import Kind
from tests.swarm.allreduce.tapped import Tapped, check_one_step, kind_of
from tests.swarm.averaging.test_service import Party as Services
from tests.swarm.harness import Swarm
from tests.tiny import tiny_run

SIZE, BATCH = 20_000, 30
HONEST, LIAR = 8, MAX_BATCHES * BATCH
"""Samples."""


def gradients() -> list[Tensor]:
    torch.manual_seed(0)
    common = torch.randn(SIZE)
    return [common + 0.3 * torch.randn(SIZE) for _ in range(3)]


@pytest.mark.parametrize("aggregator", ["mean", "clip"])
def test_two_of_five_who_claim_the_most_and_send_the_opposite_many_times_over(tmp_path: Path, aggregator: str) -> None:
    """With `clip` the step still goes the way of the three."""
    honest = gradients()
    run = tiny_run(global_batch=BATCH, averaging={"compression": "none"}, trust={"aggregator": aggregator})
    vectors = [*honest, -1000.0 * honest[0], -1000.0 * honest[1]]
    services = Services(tmp_path, run, vectors, samples=(HONEST, HONEST, HONEST, LIAR, LIAR))
    average = asyncio.run(services.meet())
    right = torch.stack(honest).mean(dim=0)
    toward = float(average @ right / (right @ right))
    assert 0.15 < toward < 0.25 if aggregator == "clip" else toward < -100.0


def test_claims_alone_make_no_batch(tmp_path: Path) -> None:
    """Three honest members have 24 samples of 200; two liars count for as many as an honest one each."""
    run = tiny_run(global_batch=200, averaging={"compression": "none"}, trust={"aggregator": "clip"})
    services = Services(tmp_path, run, [torch.ones(SIZE)] * 5, samples=(HONEST, HONEST, HONEST, LIAR, LIAR))
    results = asyncio.run(services.results())
    assert [(result.outcome, result.detail) for result in results] == [("refused", "40 of 200 samples")] * 5


@pytest.mark.soak
def test_a_volunteer_that_boasts_and_shouts_does_not_keep_three_others_from_training(tmp_path: Path) -> None:
    """Real processes: what it tells the directory, what it claims in a round and what it sends count for little.

    All samples are the same one, so that a step of theirs leads down and a step of its own up, whatever the noise.
    """
    run = tiny_run(global_batch=48, trust={"aggregator": "clip"})
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(evaluate_every=100)
        pause = {"TINY_PAUSE": "0.05", "TINY_SAME": "1"}
        for number in range(3):
            swarm.volunteer(f"v{number}", pause, microbatch=2)
        swarm.volunteer("liar", {**pause, "TINY_FAULT": "boasts in step 2"}, microbatch=2)
        most = MAX_BATCHES * run.global_batch
        first = coordinator.wait_for(StepDone, lambda event: event.step.samples > most).step
        last = coordinator.wait_for_step(first.step + 8).step
    assert first.loss is not None
    assert last.loss is not None
    assert last.loss < first.loss


def test_who_sends_what_cannot_be_added_up_is_blamed_and_not_the_reducer() -> None:
    """A sum that no float32 holds."""
    honest, liar = gradients(), 3
    party = Tapped([*honest, honest[0]], [HONEST] * 4, clients=1, patience=Patience(5.0, 5.0))

    async def tap(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
        if sender != liar or kind_of(message) != Kind.PART:
            return [message]
        number, _ = wire.read_part(message[1:])
        begin, end = party.plan.chunks[number]
        buffer = np.full(end - begin, 3e38, np.float32).tobytes()
        huge = runtime_pb2.Tensor(dtype="float32", size=(end - begin,), buffer=buffer)
        return [wire.part(number, huge.SerializeToString())]

    party.tap = tap
    outcomes = in_own_loop(party.meet())
    assert set(check_one_step(party, outcomes)) >= {0, 1, 2}
    for member in party.members[:liar]:
        assert {int(entry.peer.removeprefix("peer")) for entry in member.counted} == {0, 1, 2}
        assert member.culprits <= {f"peer{liar}"}
    assert any(member.culprits for member in party.members[:liar])
