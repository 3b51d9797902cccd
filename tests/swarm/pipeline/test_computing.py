"""A stage peer's device adds each microbatch once, and nothing that is not finite."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.learning.train.computing.device import SWITCH_SECONDS
from dedloc_kit.swarm.pipeline.computing import Given, StageComputer
from dedloc_kit.swarm.pipeline.protocol import Call
from dedloc_kit.swarm.remote.judging import Refusal
from tests.swarm.pipeline.local_pipeline import LENGTH, ROWS, WIDTH, LinearStage, Sums

HIDDEN, GRADIENT = torch.randn(2, ROWS, LENGTH, WIDTH)


class Picky(Sums):
    """Takes nothing while it is told so, as what is not finite."""

    takes, keeps = True, False

    def forget(self) -> bool:
        return not self.keeps and super().forget()

    def accumulate(self, loss: float, samples: int) -> bool:
        if self.takes:
            return super().accumulate(loss, samples)
        for parameter in self.model.parameters():
            parameter.grad = None
        return False


@pytest.fixture
def parts() -> tuple[StageComputer, Picky]:
    stage = LinearStage(1)
    model = stage.model()
    return StageComputer(stage, model, sums := Picky(model), most=100), sums


def float16(_: torch.device) -> torch.dtype:
    return torch.float16


def given(what: Any = "backward", number: int = 1, hidden: torch.Tensor = HIDDEN, times: float = 1.0) -> Given:
    """:param times: by so much the gradient is larger"""
    call = Call(what=what, stage=1, number=number, step=0, rows=ROWS, length=LENGTH)
    return Given("d", call, {}, hidden.clone(), GRADIENT * times if what == "backward" else None)


def test_what_is_not_taken_may_come_again(parts: tuple[StageComputer, Picky]) -> None:
    computer, sums = parts
    sums.takes = False
    with pytest.raises(Refusal, match="not finite"):
        computer.compute(given())
    sums.takes = True
    computer.compute(given())
    assert sums.samples == computer.served == ROWS


def test_who_begins_anew_has_nothing_of_the_step_unless_that_is_on_its_way(parts: tuple[StageComputer, Picky]) -> None:
    computer, sums = parts
    before, first = computer.session, given()
    computer.compute(first)
    sums.keeps = True
    computer.begin_anew()
    assert (computer.session, sums.samples) == (before, ROWS)
    sums.keeps = False
    computer.begin_anew()
    assert sums.samples == 0
    late = replace(first, call=first.call.model_copy(update={"session": before}))
    with pytest.raises(Refusal, match="stood still"):
        computer.compute(late)
    computer.compute(replace(first, call=first.call.model_copy(update={"session": computer.session})))
    assert sums.samples == ROWS


def test_what_drivers_have_had_computed_elsewhere_is_left_out_and_dropped_once_that_is_all(
    parts: tuple[StageComputer, Picky],
) -> None:
    computer, sums = parts
    before, call = computer.session, given()
    for driver in "de":
        computer.compute(replace(call, driver=driver))
    computer.leave_out("d")
    assert (computer.beside({"d", "e"}), computer.beside({"e"}), computer.beside({"d"})) == (ROWS, ROWS, 2 * ROWS)
    assert (sums.samples, computer.session_of("e")) == (2 * ROWS, before)
    late = replace(call, call=call.call.model_copy(update={"session": before, "number": 2}))
    with pytest.raises(Refusal, match="stood still"):
        computer.compute(late)
    computer.compute(replace(late, driver="e"))
    computer.leave_out("f")
    assert sums.samples == 3 * ROWS
    computer.leave_out("e")
    assert (sums.samples, computer.beside({"d", "e"})) == (0, 0)
    assert before not in (computer.session_of("e"), computer.session_of("d"))


def test_what_fails_in_the_middle_leaves_no_gradients(parts: tuple[StageComputer, Picky]) -> None:
    computer, sums = parts
    layer: Any = sums.model["layer"]  # type: ignore[index]
    handle = layer.register_full_backward_hook(lambda *_: layer.absent)
    with pytest.raises(AttributeError):
        computer.compute(given())
    handle.remove()
    computer.compute(given(number=2))
    again, right = StageComputer(computer.stage, sums.model, sums, most=100), [g.clone() for g in sums.gradients]
    again.compute(given(number=2))
    assert all(torch.allclose(now, 2 * once) for now, once in zip(sums.gradients, right, strict=True))


def test_in_the_next_step_numbers_and_room_are_new(parts: tuple[StageComputer, Picky]) -> None:
    computer, sums = parts
    computer.compute(given())
    sums.step = 1
    later = given()
    computer.compute(Given("d", later.call.model_copy(update={"step": 1}), {}, later.hidden, later.gradient))
    assert sums.samples == 2 * ROWS


def test_how_fast_it_is_is_known_once_both_ways_are_measured(parts: tuple[StageComputer, Picky]) -> None:
    computer, _ = parts
    computer.compute(given("forward"))
    assert computer.microbatches_per_second == 0
    computer.compute(given())
    assert 0 < computer.microbatches_per_second < 1e5


@pytest.mark.parametrize("times", [1e-9, 1e3])
def test_in_float16_small_gradients_stay_and_large_ones_overflow_for_nobody(
    parts: tuple[StageComputer, Picky], times: float
) -> None:
    plain, sums = parts
    half = StageComputer(plain.stage, sums.model, halves := Picky(sums.model), most=100, half=float16)
    answers = [each.compute(given(times=times)).output for each in (plain, half)]
    assert halves.samples == ROWS
    for right, found in zip([answers[0], *sums.gradients], [answers[1], *halves.gradients], strict=True):
        assert right is not None
        assert found is not None
        assert found.dtype == torch.float32
        assert float((found - right).norm()) <= 0.01 * float(right.norm()), (found, right)


def test_what_is_not_finite_without_a_scale_is_tried_three_times_and_takes_the_scale_from_nobody(
    parts: tuple[StageComputer, Picky],
) -> None:
    plain, sums = parts
    layer: Any = sums.model["layer"]  # type: ignore[index]
    passes: list[int] = []
    layer.register_forward_hook(lambda *_: passes.append(1))
    half = StageComputer(plain.stage, sums.model, Picky(sums.model), most=1000, half=float16)
    for number in range(20):
        passes.clear()
        with pytest.raises(Refusal, match="not finite") as refused:
            half.compute(given(number=number, times=1e9))
        assert refused.value.kind == "failed"
        assert len(passes) == 3
    for number in range(20, 23):  # of which only the first needs a smaller scale
        half.compute(given(number=number, times=1e3 if number == 20 else 1e-9))
    right, found = (each.compute(given(number=30, times=1e-9)).output for each in (plain, half))
    assert right is not None
    assert found is not None
    assert float((found - right).norm()) <= 0.01 * float(right.norm())


def test_what_a_diverged_stage_makes_is_computed_once_and_no_fault_of_its_driver(
    parts: tuple[StageComputer, Picky],
) -> None:
    plain, sums = parts
    half = StageComputer(plain.stage, sums.model, sums, most=1000, half=float16)
    layer: Any = sums.model["layer"]  # type: ignore[index]
    passes: list[int] = []
    layer.register_forward_hook(lambda *_: passes.append(1))
    with torch.no_grad():
        layer.weight.fill_(float("nan"))
    for what in ("forward", "backward"):
        with pytest.raises(Refusal) as refused:
            half.compute(given(what))
        assert refused.value.kind == "failed"
    assert len(passes) == 2


def test_a_stage_on_a_gpu_waits_briefly_for_pythons_other_threads(
    parts: tuple[StageComputer, Picky], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, sums = parts
    taken: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    gpu: Any = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda:1"))]))
    before = sys.getswitchinterval()
    try:
        StageComputer(plain.stage, gpu, sums, most=100, half=float16)
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
        assert taken == [torch.device("cuda:1")]
    finally:
        sys.setswitchinterval(before)
