"""What the coordinator measures beside the training, and what it makes of that."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.coordinator.durability import LastingRecord
from dedloc_kit.coordinator.evaluator import Driven, Evaluator
from dedloc_kit.events import AnyEvent, Evaluated, Peers
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import StartPoint
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.steps import GlobalStep, Receipt
from dedloc_kit.steering.divergence import EVALUATIONS, STEPS
from tests.tiny import TinyTask, tiny_run

NOTHING_HELD_OUT = {"train": [{"dataset": "none/none"}]}


class Measured:
    """A run that one process takes alone, step by step."""

    def __init__(
        self,
        folder: Path,
        driven: Driven | None = None,
        device: str = "cpu",
        kind: type[TinyTask] = TinyTask,
        **sections: Any,
    ) -> None:
        run = tiny_run(**sections)
        made = kind(run)
        groups = made.groups
        self.state = TrainingState(made.model(), lambda model: build_optimizer(run.optimizer, groups(model)), run)
        self.lasting = LastingRecord(folder, keep=3)
        self.lasting.begin(None)
        self.events: list[AnyEvent] = []
        self.evaluator = Evaluator(
            run, made, self.state, self.lasting, self.events.append, driven, torch.device(device)
        )

    @property
    def steps(self) -> list[int]:
        return [event.step for event in self.events if isinstance(event, Evaluated)]

    def step(self, loss: float | None = 1.0, peers: int = 1) -> None:
        number = self.state.step + 1
        receipt = Receipt(step=number, round=f"{number:040x}", time=1.0, seconds=1.0, record=b"")
        self.state.apply(torch.ones(self.state.layout.size), receipt)
        samples = 64 if peers else 0
        self.evaluator.stepped(
            GlobalStep(step=number, round=receipt.round, time=1.0, samples=samples, loss=loss, peers=peers, seconds=1.0)
        )

    def problem(self) -> str:
        return self.evaluator.watch(Peers(peers=()), over=False).problem


def test_each_state_is_measured_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    run = Measured(tmp_path)
    for _ in range(2):
        run.evaluator.start()
        run.evaluator.finish(wait=True)
    assert run.steps == [0]
    run.step()
    run.evaluator.start()
    assert run.evaluator.under_way == 1
    run.step()
    run.evaluator.start()
    assert run.evaluator.under_way == 1, "one at a time"
    run.evaluator.finish(wait=True)
    assert run.evaluator.under_way is None
    assert run.steps == [0, 1]
    assert run.problem() == ""


def losses(run: Measured) -> list[float]:
    return [event.loss for event in run.events if isinstance(event, Evaluated)]


class OnAnyDevice(TinyTask):
    """Finds that its loss is 0.5 on `meta`, where no values are."""

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        on_meta = {each.device.type for each in (*model.parameters(), *model.buffers())} == {"meta"}
        return Evaluation(loss=0.5) if on_meta else super().evaluate(model)


def test_the_device_of_the_machine_measures_and_the_state_stays_where_it_is(tmp_path: Path) -> None:
    run = Measured(tmp_path, device="meta", kind=OnAnyDevice)
    run.evaluator.start()
    run.evaluator.finish(wait=True)
    assert losses(run) == [0.5]
    assert run.state.flat.device.type == "cpu"


@pytest.mark.parametrize("held_out", [True, False])
def test_what_a_device_cannot_compute_the_processor_does_and_that_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, held_out: bool
) -> None:
    sections: dict[str, Any] = {} if held_out else {"data": NOTHING_HELD_OUT}
    run, other = Measured(tmp_path / "one", device="meta", **sections), Measured(tmp_path / "other", **sections)
    for each in (run, other):
        for _ in range(2):
            each.evaluator.start(suspected=True)
            each.evaluator.finish(wait=True)
            each.step()
    assert losses(run) == losses(other)
    assert len(losses(run)) == (2 if held_out else 0)
    told = [record.message for record in caplog.records if "meta" in record.message]
    assert len(told) == 1
    assert told[0].startswith("evaluations are on the processor from now on, for on meta: ")


def test_a_model_that_is_lost_is_told_and_its_state_marked_until_a_step_has_taken_over_an_earlier_one(
    tmp_path: Path,
) -> None:
    run = Measured(tmp_path)
    run.step()
    run.state.flat.fill_(math.nan)
    run.evaluator.start()
    run.evaluator.finish(wait=True)
    ruined = run.lasting.checkpoints.ruined
    assert run.steps == []
    assert run.problem() == "the training has diverged: the held-out loss of step 1 is not a finite number"
    assert [step in ruined for step in (0, 1, 2)] == [False, True, True]
    run.step(loss=None, peers=0)
    assert run.problem() == ""
    assert [step in ruined for step in (0, 1, 2)] == [False, True, False]


def test_without_held_out_data_only_a_doubt_is_measured_and_ends_what_others_claimed(tmp_path: Path) -> None:
    run = Measured(tmp_path, data=NOTHING_HELD_OUT)
    run.evaluator.start()
    assert run.evaluator.under_way is None
    run.step()
    for _ in range(STEPS):
        run.step(loss=1e6)
    assert "the training loss is 1e+06" in run.problem()
    assert run.evaluator.under_way == run.state.step
    run.evaluator.finish(wait=True)
    assert run.problem() == ""
    assert not any(step in run.lasting.checkpoints.ruined for step in range(run.state.step + 1))


def test_what_goes_wrong_with_the_model_that_it_goes_on_from_stands_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Measured(tmp_path)
    monkeypatch.setattr("dedloc_kit.coordinator.evaluator.measure_start", lambda *_: 1 / 0)
    run.evaluator.measure_start()
    run.evaluator.start()
    run.evaluator.finish(wait=True)  # what is begun later is done later
    assert run.steps == [0]
    assert "ZeroDivisionError" in caplog.text


def test_others_measure_what_they_can_and_are_not_believed_in_what_is_bad_news(tmp_path: Path) -> None:
    say: dict[int, float] = {1: 0.5, 2: 100.0, 3: math.nan}
    asked = list[int]()

    def driven(step: int) -> Evaluation | None:
        asked.append(step)
        return Evaluation(loss=say[step]) if step in say else None

    run = Measured(tmp_path, driven)
    losses = list[float]()
    for _ in range(4):
        run.evaluator.start()
        run.evaluator.finish(wait=True)
        losses.append(next(event.loss for event in reversed(run.events) if isinstance(event, Evaluated)))
        run.step()
    assert run.steps == asked == [0, 1, 2, 3]
    assert losses[1] == 0.5
    assert not {100.0, math.nan} & set(losses), "of these the coordinator has measured the loss itself"
    assert losses[2] != losses[3] != losses[0]
    assert run.problem() == ""


def test_what_others_say_ends_no_doubt_of_the_coordinator(tmp_path: Path) -> None:
    asked = list[int]()

    def driven(step: int) -> Evaluation | None:
        asked.append(step)
        return Evaluation(loss=0.5) if step else None

    run = Measured(tmp_path, driven)
    run.evaluator.start()
    run.evaluator.finish(wait=True)
    run.step()
    for _ in range(STEPS):
        run.step(loss=1e6)
    assert "the training loss is 1e+06" in run.problem()
    run.evaluator.finish(wait=True)
    assert (asked, run.problem()) == ([0], ""), "it has measured that itself"


class OnOther(TinyTask):
    """The tiny task with other held-out data than before."""

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        return super().evaluate(model).model_copy(update={"held_out": "b" * 64})


def test_a_loss_on_other_held_out_data_is_not_compared_with_the_one_before(tmp_path: Path) -> None:
    ledger = LastingRecord(tmp_path, keep=3).ledger
    ledger.record_evaluation(0, Evaluation(loss=1e-6, held_out="a" * 64), 1.0)
    ledger.record_start(StartPoint("tiny", "us/model", 1e-6))
    run = Measured(tmp_path, kind=OnOther)
    for _ in range(EVALUATIONS + 1):
        run.step()
        run.evaluator.start()
        run.evaluator.finish(wait=True)
    assert run.problem() == ""
    assert [point.step for point in run.lasting.ledger.evaluations()] == run.steps == [1, 2, 3, 4]
    assert run.lasting.ledger.start() is None, "it is measured again"


def test_what_others_say_begins_no_curve_anew(tmp_path: Path) -> None:
    run = Measured(tmp_path, lambda step: Evaluation(loss=1e-6, held_out="c" * 64), kind=OnOther)
    for _ in range(3):
        run.step()
        run.evaluator.start()
        run.evaluator.finish(wait=True)
    assert [point.step for point in run.lasting.ledger.evaluations()] == [1, 2, 3]
