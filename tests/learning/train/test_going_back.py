"""A state that takes over an earlier one, numbered on."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.orders import RATE, REWOUND
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from tests.learning.train.by_hand import give
from tests.tiny import TinyTask, tiny_run

RUN = tiny_run(optimizer={"learning_rate": 0.01, "warmup_steps": 0, "total_steps": 1000})


def fresh() -> TrainingState:
    task = TinyTask(RUN)
    return TrainingState(task.model(), lambda model: build_optimizer(RUN.optimizer, task.groups(model)), RUN)


def receipt(step: int) -> Receipt:
    return Receipt(step=step, round=f"{step:02d}", time=1.0, seconds=0.0, record=b"")


def train(state: TrainingState, steps: int) -> None:
    for _ in range(steps):
        state.apply(torch.ones(state.layout.size), receipt(state.step + 1))


def test_all_is_that_of_before_but_the_number_the_history_and_the_rate() -> None:
    state = fresh()
    train(state, 2)
    before, info = state.copy()
    train(state, 3)
    state.go_back(before, info, receipt(6), 0.5)
    assert (state.step, state.rewound, state.rate) == (6, 6, 0.5)
    assert state.rounds == ("01", "02", "03", "04", "05", "06")
    assert [receipt.step for receipt in state.receipts] == [1, 2, 3, 4, 5, 6]
    after, _ = state.copy()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if name not in (RATE, REWOUND))
    again, info = state.copy()
    state.go_back(again, info, receipt(7), 0.5)
    assert (state.rewound, state.rate) == (7, 0.25), "on top of what held there"


def test_the_rate_of_the_steps_that_follow_is_the_configured_one_times_the_factor() -> None:
    rates = list[float]()
    for factor in (1.0, 0.5):
        state = fresh()
        tensors, info = state.copy()
        state.go_back(tensors, info, receipt(1), factor)
        train(state, 1)
        rates.append(state.optimizer.param_groups[0]["lr"])
    assert rates[1] == pytest.approx(0.5 * rates[0])


def test_the_factor_goes_with_a_checkpoint_and_one_of_before_there_were_any_has_none(tmp_path: Path) -> None:
    state, old = fresh(), fresh()
    tensors, info = state.copy()
    state.go_back(tensors, info, receipt(1), 0.5)
    checkpoint.save(tmp_path / "new.safetensors", *state.copy())
    checkpoint.save(
        tmp_path / "old.safetensors", {name: t for name, t in tensors.items() if not name.startswith("rewind")}, info
    )
    for name, rate, rewound in [("new", 0.5, 1), ("old", 1.0, 0)]:
        old.load_named(*checkpoint.load(tmp_path / f"{name}.safetensors"))
        assert (old.rate, old.rewound) == (rate, rewound)


@pytest.mark.parametrize("spoil", [lambda t: t * torch.nan, lambda t: t[:1]], ids=["not finite", "other shape"])
def test_what_is_no_state_of_this_model_is_refused_and_nothing_changes(
    spoil: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    state = fresh()
    tensors, info = state.copy()
    name = next(iter(tensors))
    with pytest.raises(ValueError, match=name):
        state.go_back(tensors | {name: spoil(tensors[name])}, info, receipt(1), 0.5)
    assert (state.step, state.rewound, state.rate, state.receipts) == (0, 0, 1.0, ())


def test_what_a_volunteer_computes_with_parameters_of_before_is_dropped_when_it_takes_over_the_others() -> None:
    state = fresh()
    replica = Replica(state, torch.device("cpu"))
    gradients = Gradients([replica])
    dropped = list[int]()

    def refresh() -> None:
        replica.refresh(gradients.rebase, lambda: dropped.append(gradients.forget()))

    tensors, info = state.copy()
    train(state, 1)
    refresh()
    assert give(replica, samples=4, step=replica.step)
    state.go_back(tensors, info, receipt(2), 1.0)
    refresh()
    assert (dropped, gradients.counter.samples, replica.step) == ([4], 0, 2)
    assert give(replica, samples=4, step=replica.step)
    train(state, 1)
    refresh()
    assert (dropped, gradients.counter.samples) == ([4], 4), "the usual step leaves what is under way alone"
