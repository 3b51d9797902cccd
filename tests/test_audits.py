"""A run with checks, of real processes: who does not send the gradient of its work is sent away, and nobody else."""

from pathlib import Path

import pytest

from dedloc_kit.events import Warned
from dedloc_kit.run import OptimizerConfig, TrustConfig
from dedloc_kit.steering.orders import OrderBook
from tests.swarm.harness import Swarm
from tests.text_runs import text_run, write_text

STEPS = 60


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_who_climbs_where_others_go_down_is_found_and_sent_away_and_the_others_train_on(tmp_path: Path) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    run = run.model_copy(
        update={
            "global_batch": 24,
            "trust": TrustConfig(checks="on", share=1.0),
            "optimizer": OptimizerConfig(warmup_steps=1, total_steps=1000),
        }
    )
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(task_module=None)
        honest = [swarm.volunteer(name, task_module=None, microbatch=4) for name in ("one", "two")]
        cheat = swarm.volunteer("three", task_module="tests.cheating_tasks", microbatch=4)
        identity = cheat.joined.peer
        found = coordinator.wait_for(Warned, lambda event: "is sent away" in event.text, deadline=240.0)
        assert "three" in found.text, found
        assert "is not the gradient" in found.text or "has another gradient" in found.text or "is wrong" in found.text
        step = coordinator.steps[-1].step.step
        for peer in honest:
            peer.wait_for_step(step + 6)
        kicked = OrderBook(coordinator.config.folder).read().kicked
        assert {each.peer for each in kicked} == {identity}, "nobody honest is sent away"
