"""A run with checks, of real processes: who does not send the gradient of its work is sent away, and nobody else."""

from pathlib import Path

import pytest

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.events import Failed, Joined, LocalProgress, StepDone, Warned
from dedloc_kit.steering.orders import OrderBook
from tests.swarm.harness import Peer, Swarm
from tests.text_runs import text_run, write_text

CHEATS = {
    "climbs": ("is not the gradient", "has another gradient", "is wrong"),
    "shouts": ("is not the gradient",),
    "two faces": ("introduced itself to one round in two ways",),
    "accuses": ("what it computed to check another volunteer is wrong",),
}
"""How four cheat (`tests.cheating_tasks`), and of what each may be convicted."""
HONEST = ("one", "two", "three", "four")


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_of_eight_volunteers_four_that_cheat_are_found_and_sent_away_and_the_others_train_on(tmp_path: Path) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    run = run.model_copy(
        update={
            "global_batch": 192,
            "trust": TrustConfig(checks="on", share=1.0),
            "optimizer": OptimizerConfig(learning_rate=0.01, warmup_steps=1, total_steps=1000),
        }
    )
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(task_module=None)
        honest = [swarm.volunteer(name, task_module=None, microbatch=4) for name in HONEST]
        cheats = {
            name: swarm.volunteer(name, {"CHEAT": name}, task_module="tests.cheating_tasks", microbatch=4)
            for name in CHEATS
        }
        for name, reasons in CHEATS.items():
            found = sent_away(coordinator, cheats[name])
            assert any(reason in found.text for reason in reasons), found
        step, left = coordinator.steps[-1].step.step, {peer.joined.peer for peer in honest}
        for peer in honest:
            peer.wait_for(StepDone, lambda event: event.step.step > step + 2 and event.contributions.keys() <= left)
        kicked = OrderBook(coordinator.config.folder).read().kicked
        assert {each.peer for each in kicked} == {cheat.joined.peer for cheat in cheats.values()}


@pytest.mark.soak
def test_a_machine_that_computes_wrongly_is_told_so_and_gives_nothing_and_the_others_train_on(tmp_path: Path) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal").model_copy(
        update={"trust": TrustConfig(checks="on"), "optimizer": OptimizerConfig(warmup_steps=1, total_steps=1000)}
    )
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(task_module=None)
        honest = swarm.volunteer("honest", task_module=None, microbatch=4)
        honest.wait_for_step(1)
        broken = swarm.volunteer("broken", {"CHEAT": "miscomputes"}, task_module="tests.cheating_tasks", microbatch=4)
        assert "computes wrongly" in broken.wait_for(Failed).text
        assert not [event for event in broken.events if isinstance(event, Joined | LocalProgress)]
        honest.wait_for_step(honest.steps[-1].step.step + 2)
        assert {peer for step in coordinator.steps for peer in step.contributions} == {honest.joined.peer}
        assert not OrderBook(coordinator.config.folder).read().kicked, "it is no cheat"


def sent_away(coordinator: Peer, cheat: Peer) -> Warned:
    told = f"(...{cheat.joined.peer[-4:]}) is sent away"
    return coordinator.wait_for(Warned, lambda event: told in event.text, deadline=300.0)
