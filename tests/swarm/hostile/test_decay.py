"""A member orders what only the organizer may: that the learning rate falls, and the run ends."""

from pathlib import Path

import pytest

from dedloc_kit.events import StepDone, Warned
from dedloc_kit.training import checkpoint
from dedloc_kit.training.state import DECAY_START
from tests.swarm.harness import Swarm, assert_ledger_sums
from tests.tiny import tiny_run


@pytest.mark.slow  # `receipts.decay_in` is tested by itself
def test_a_member_that_orders_the_run_to_decay_with_every_step_moves_nobody(tmp_path: Path) -> None:
    steady = {"learning_rate": 0.01, "schedule": "warmup-stable-decay", "warmup_steps": 0, "total_steps": 1000}
    with Swarm(tiny_run("decays", global_batch=64, optimizer=steady), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        honest = swarm.volunteer("honest", {"TINY_PAUSE": "0.1"}, microbatch=4)
        fault = {"TINY_PAUSE": "0.1", "TINY_FAULT": "orders a decay"}
        mallory = swarm.volunteer("mallory", fault, microbatch=4).joined.peer
        brought = coordinator.wait_for(StepDone, lambda event: mallory in event.contributions).step.step
        for peer in (coordinator, honest):
            peer.wait_for_step(brought + 3)
            assert not [event for event in peer.events if isinstance(event, Warned) and "rate fall" in event.text]
        coordinator.worker.stop()
        newest = max((coordinator.config.folder / "checkpoints").glob("step-*.safetensors"))
    assert int(checkpoint.load(newest)[0][DECAY_START]) == 0
    assert_ledger_sums(coordinator, 64)
