"""The organizer's order that the learning rate falls, as it stands in the state."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.orders import DECAY_START, DECAY_STEPS
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.orders import Decay
from dedloc_kit.records.steps import Receipt
from tests.tiny import TinyTask, tiny_run

STEADY: dict[str, Any] = {
    "name": "adamw",
    "learning_rate": 0.01,
    "schedule": "warmup-stable-decay",
    "warmup_steps": 0,
    "total_steps": 100,
}
RUN = tiny_run(optimizer=STEADY)


def fresh(**optimizer: Any) -> TrainingState:
    run = tiny_run(optimizer=STEADY | optimizer) if optimizer else RUN
    task = TinyTask(run)
    groups = task.groups
    return TrainingState(task.model(), lambda model: build_optimizer(run.optimizer, groups(model)), run)


def train(state: TrainingState, *orders: int) -> list[float]:
    """A step with each of these orders; at which rates."""
    rates = []
    for order in orders:
        receipt = Receipt(step=state.step + 1, round=f"{state.step:02d}", time=1.0, seconds=0.0, record=b"")
        state.apply(torch.ones(state.layout.size), receipt, order)
        rates.append(state.optimizer.param_groups[0]["lr"])
    return rates


def test_the_rate_falls_from_the_step_with_the_order_on_and_a_second_order_changes_nothing() -> None:
    state = fresh()
    assert train(state, 0, 0, 4, 0, 2, 0) == pytest.approx([0.01, 0.01, 0.008, 0.006, 0.004, 0.002])
    assert state.decay == Decay(start=3, steps=4)
    assert state.decay.end == 6


def test_no_decay_is_longer_than_the_run() -> None:
    state = fresh(total_steps=5)
    train(state, 0, 0, 10)
    assert state.decay == Decay(start=3, steps=3)


def test_a_run_with_another_schedule_takes_no_such_order() -> None:
    state = fresh(schedule="linear")
    train(state, 0, 4)
    assert state.decay is None
    assert train(state, 0) == pytest.approx([learning_rate(state.run.optimizer, 2)])


def test_who_takes_over_a_state_or_a_checkpoint_goes_on_with_the_same_rates(tmp_path: Path) -> None:
    state, newcomer, resumed, old = fresh(), fresh(), fresh(), fresh()
    train(state, 0, 4, 0)
    newcomer.load(state.tensors(), state.info)
    checkpoint.save(tmp_path / "state.safetensors", *state.copy())
    resumed.load_named(*checkpoint.load(tmp_path / "state.safetensors"))
    rates = train(state, 0, 0)
    for other in (newcomer, resumed):
        assert other.decay == Decay(start=2, steps=4)
        assert train(other, 0, 0) == rates
        assert torch.equal(other.flat, state.flat)
    tensors, info = checkpoint.load(tmp_path / "state.safetensors")
    old.load_named({name: t for name, t in tensors.items() if not name.startswith("decay")}, info)
    assert old.decay is None, "a checkpoint from before there were such orders"


@pytest.mark.parametrize(("inside", "rate"), [(False, 0.01), (True, 0.002)])
def test_a_rewind_to_a_state_before_it_ends_it_and_one_to_a_state_within_it_does_not(inside: bool, rate: float) -> None:
    state = fresh()
    train(state, 0)
    before = state.copy()
    train(state, 4)
    within = state.copy()
    train(state, 0)
    state.go_back(*(within if inside else before), Receipt(step=4, round="04", time=1.0, seconds=0.0, record=b""), 1.0)
    assert state.decay == (Decay(start=2, steps=4) if inside else None)
    assert train(state, 0) == pytest.approx([rate]), "by the number of the step, as everything"


@pytest.mark.parametrize(("start", "steps"), [(3, 0), (3, -1), (-3, 4)])
def test_a_state_with_a_decay_that_makes_no_sense_is_refused(start: int, steps: int) -> None:
    state = fresh()
    tensors, info = state.copy()
    wrong = tensors | {DECAY_START: torch.tensor([start]), DECAY_STEPS: torch.tensor([steps])}
    for take in (state.check_named, state.load_named):
        with pytest.raises(ValueError, match="Decay"):
            take(wrong, info)
    assert (state.step, state.decay) == (0, None)
