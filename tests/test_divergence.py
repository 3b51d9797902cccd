"""A run that is lost says so, and nobody starts from what it has come to."""

import math
from pathlib import Path

import pytest

from dedloc_kit.events import Evaluated, Peers, Warned
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from tests.hang import HANG
from tests.swarm.harness import Swarm, wait_until
from tests.tiny import tiny_run

MAD = {"learning_rate": 1e20, "warmup_steps": 0, "total_steps": 1000}


NOTHING_HELD_OUT = {"train": [{"dataset": "none/none"}]}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_run_with_a_mad_learning_rate_says_that_it_has_diverged_and_resumes_from_before(tmp_path: Path) -> None:
    run = tiny_run(global_batch=16, optimizer=MAD)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(checkpoint_every=1, evaluate_every=1000)
        swarm.volunteer("volunteer", {"TINY_PAUSE": "0.02"}, microbatch=4)
        coordinator.wait_for_step(1)
        told = coordinator.wait_for(Peers, lambda event: bool(event.problem))
        assert "the training has diverged" in told.problem
        found = coordinator.wait_for(Peers, lambda event: "held-out loss" in event.problem)
        assert found.problem.endswith("is not a finite number")
        assert not any(isinstance(e, Evaluated) and not math.isfinite(e.loss) for e in coordinator.events)
    newest = max(int(path.stem[5:]) for path in (tmp_path / "coordinator" / "checkpoints").glob("step-*.safetensors"))
    assert newest in Checkpoints(tmp_path / "coordinator" / "checkpoints").ruined
    with Swarm(run, tmp_path) as swarm:
        again = swarm.coordinator()
        assert again.joined.step < newest
        again.wait_for(Warned, lambda event: "a training that had diverged" in event.text)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_what_volunteers_claim_of_their_losses_ruins_no_checkpoint(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=16, data=NOTHING_HELD_OUT), tmp_path) as swarm:
        coordinator = swarm.coordinator(checkpoint_every=1)
        liar = {"TINY_PAUSE": "0.02", "TINY_FAULT": "claims in step 3"}
        swarm.volunteer("volunteer", liar, microbatch=4)
        coordinator.wait_for(Peers, lambda event: "the training loss is 1e+06" in event.problem)

        def seen_through() -> bool:
            told = [bool(event.problem) for event in coordinator.events if isinstance(event, Peers)]
            return False in told[told.index(True) :]

        wait_until(seen_through, "it believes what it is told", HANG)
    checkpoints = Checkpoints(tmp_path / "coordinator" / "checkpoints")
    assert not any(int(path.stem[5:]) in checkpoints.ruined for path in checkpoints.kept())
