"""The training state: what is handed over is one global step's, whatever the background does meanwhile."""

import multiprocessing
import threading
from collections.abc import Iterable

import pytest
import torch

from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.transfer.contents import StateLayout
from tests.hang import HANG
from tests.tiny import TinyTask, tiny_run


def test_a_step_that_falls_due_while_the_state_is_handed_over_waits_for_it() -> None:
    run = tiny_run()
    state = TrainingState(TinyTask(run).model(), lambda m: Lamb(m.parameters(), lr=0.1), run)
    before = state.flat.clone()
    receipt = Receipt(step=1, round="ab", time=1.0, seconds=0.0, record=b"")
    step = threading.Thread(target=state.apply, args=(torch.ones_like(state.flat), receipt))
    with state.for_newcomer() as (metadata, tensors):
        step.start()
        step.join(timeout=0.2)
        layout = StateLayout(tensors)
        packed = layout.pack(tensors)
        assert step.is_alive()
        assert metadata["info"]["step"] == 0
    step.join(HANG)
    assert state.step == 1
    assert not torch.equal(state.flat, before)
    handed_over = torch.cat([tensor.flatten() for tensor in layout.views(packed)[: len(state.parameters)]])
    assert torch.equal(handed_over, before)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_state_with_a_number_that_is_not_finite_is_refused_and_changes_nothing(wrong: float) -> None:
    run = tiny_run()
    state = TrainingState(TinyTask(run).model(), lambda m: Lamb(m.parameters(), lr=0.1), run)
    before = state.flat.clone()
    tensors = [torch.ones_like(tensor) for tensor in state.tensors()]
    info = StateInfo(run_id=run.run_id, step=5, rounds=("ab",))
    tensors[0].flatten()[-1] = wrong
    with pytest.raises(ValueError, match="holds numbers that are not finite"):
        state.load(tensors, info)
    assert torch.equal(state.flat, before)
    assert state.step == 0
    tensors[0].flatten()[-1] = 1.0
    state.load(tensors, info)
    assert state.position == (5, "ab")


@pytest.mark.parametrize("size", [0.25, 100.0])
def test_a_step_is_no_longer_than_the_longest_gradient_that_the_run_allows(size: float) -> None:
    run = tiny_run(optimizer={"learning_rate": 0.5, "warmup_steps": 0, "total_steps": 10, "max_grad_norm": 2.0})
    state = TrainingState(TinyTask(run).model(), lambda m: Plain(m.parameters()), run)
    before, gradient = state.flat.clone(), torch.full_like(state.flat, size / state.flat.numel() ** 0.5)
    state.apply(gradient, Receipt(step=1, round="ab", time=1.0, seconds=0.0, record=b""))
    assert float((state.flat - before).norm()) == pytest.approx(0.5 * min(size, 2.0), rel=1e-4)


class Plain(torch.optim.SGD):
    """Goes down the gradient as it is."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, lr=1.0)

    def state_tensors(self) -> list[torch.Tensor]:
        return []


@pytest.mark.child
def test_the_shared_parameters_lie_in_memory_that_a_forked_process_does_not_take_again() -> None:
    state = TrainingState(torch.nn.Linear(2, 2), lambda m: Lamb(m.parameters(), lr=0.1), tiny_run())
    child = multiprocessing.get_context("fork").Process(target=state.flat.fill_, args=(7.0,))
    child.start()
    child.join(HANG)
    assert bool((state.flat == 7.0).all())


def test_parameters_that_are_not_finite_differ_only_from_finite_ones() -> None:
    run = tiny_run()
    sound, diverged, alike = (
        TrainingState(TinyTask(run).model(), lambda m: Plain(m.parameters()), run) for _ in range(3)
    )
    for number, state in enumerate((diverged, alike)):
        gradient = torch.ones_like(state.flat)
        gradient[number] = float("inf")
        state.apply(gradient, Receipt(step=1, round="ab", time=1.0, seconds=0.0, record=b""))
    assert (len(sound.sketch) > 0, diverged.sketch) == (True, ())
    assert not diverged.differs(alike.sketch)
    assert diverged.differs(sound.sketch)
    assert sound.differs(diverged.sketch)
