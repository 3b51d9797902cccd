"""`decay` in a real swarm: from the same step on all let the rate fall and read the last mixture, and the run ends with
that."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Left, Peers, State, Warned
from dedloc_kit.learning.tasks.batches import run_on
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.records.orders import Decay
from dedloc_kit.steering.orders import OrderBook
from tests.swarm.harness import Peer, Swarm, difference, processes_of, wait_until
from tests.tiny import TinyTask, tiny_run

STEPS = 30
SAME = {"TINY_SAME": "1"}
RUN = tiny_run(
    global_batch=32,
    data={"train": [{"dataset": "none/none"}], "cooldown": [{"dataset": "none/better"}]},
    averaging={"overlap": False, "compression": "none"},
    optimizer={
        "name": "adamw",
        "learning_rate": 0.1,
        "epsilon": 1.0,  # so that where a gradient is nearly zero rounding is not what decides
        "schedule": "warmup-stable-decay",
        "warmup_steps": 2,
        "total_steps": 1000,
    },
)


def order(coordinator: Peer, steps: int) -> None:
    OrderBook(coordinator.config.folder).cooldown(steps, coordinator.steps[-1].step.step)


def begun(peer: Peer) -> Decay:
    """As the coordinator sees it."""
    decay = peer.wait_for(Peers, lambda event: event.decay is not None).decay
    assert decay is not None
    return decay


def plain_loop(run: RunConfig, decay: Decay, mixed: int | None = None) -> dict[str, Tensor]:
    """The parameters after the last step of a decay; every sample of a mixture is the same one.

    :param mixed: the step after which the last mixture is read; the one whose receipt holds the order if not said
    """
    task, settings = TinyTask(run), run.optimizer
    model = task.model()
    optimizer = build_optimizer(settings, task.groups(model))
    usual, last = (
        next(each.batches(run.global_batch, 0, pytest.fail))
        for each in (task, TinyTask(run_on(run, run.data.cooldown)))
    )
    mixed = decay.start if mixed is None else mixed
    for step in range(decay.end):
        optimizer.zero_grad()
        task.loss(model, task.prepare(usual if step < mixed else last), step).mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step, decay)
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_all_ended_there(decay: Decay, coordinator: Peer, volunteers: Sequence[Peer]) -> None:
    expected = plain_loop(RUN, decay)
    for peer in (coordinator, *volunteers):
        for name, parameter in peer.parameters().items():
            assert float((parameter - expected[name]).norm() / expected[name].norm()) < 1e-5, f"{peer.name}: {name}"
    sooner, late_mixture = Decay(start=decay.start - 1, steps=STEPS + 1), decay.start + 1
    for other in (plain_loop(RUN, sooner, decay.start), plain_loop(RUN, decay, late_mixture)):
        assert difference(coordinator.parameters(), other) > 1e-4, "another step to begin with would have been noticed"


@pytest.mark.soak
def test_a_run_whose_decay_is_ordered_ends_where_a_plain_loop_does_and_a_newcomer_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_SAME", "1")
    hold, environment = tmp_path / "hold", SAME | {"TINY_PAUSE": "0.1", "TINY_HOLD": str(tmp_path / "hold")}
    with Swarm(RUN, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        volunteers = [swarm.volunteer(name, environment, microbatch=4) for name in ("one", "two")]
        coordinator.wait_for_step(4)
        order(coordinator, STEPS)
        decay = begun(coordinator)
        hold.touch()
        late = swarm.volunteer("late", environment, microbatch=4)
        assert decay.start <= late.joined.step < decay.end
        hold.unlink()
        volunteers.append(late)
        for peer in volunteers:
            assert peer.wait_for(Left).step == decay.end
            told = peer.wait_for(Warned, lambda event: "the organizer lets the learning rate fall" in event.text)
            assert f"from global step {decay.start} on, over {STEPS}; the run ends with step {decay.end}" in told.text
        coordinator.wait_for(State, lambda event: f"global step {decay.end} was the last one" in event.text)
    assert decay.steps == STEPS
    assert_all_ended_there(decay, coordinator, volunteers)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_decay_survives_that_the_coordinator_dies_before_it_begins_and_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINY_SAME", "1")
    hold, environment = tmp_path / "hold", SAME | {"TINY_PAUSE": "0.1", "TINY_HOLD": str(tmp_path / "hold")}
    with Swarm(RUN, tmp_path) as swarm:
        first = swarm.coordinator()
        volunteers = [swarm.volunteer(name, environment, microbatch=4) for name in ("one", "two")]
        first.wait_for_step(4)
        kill(first)
        order(first, STEPS)

        second = swarm.coordinator()
        decay = begun(second)
        hold.touch()
        kill(second)

        third = swarm.coordinator()
        hold.unlink()
        for peer in volunteers:
            assert peer.wait_for(Left).step == decay.end
        third.wait_for(State, lambda event: f"global step {decay.end} was the last one" in event.text)
    assert decay.steps == STEPS
    assert begun(third) == decay
    assert_all_ended_there(decay, third, volunteers)


def kill(coordinator: Peer) -> None:
    coordinator.worker.kill()
    wait_until(lambda: not processes_of(coordinator.worker.pid), "a process of the coordinator is left")
