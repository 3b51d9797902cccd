"""What a stage takes from strangers."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.task import StageTask
from tests.learning.models.test_parts import batch_of, task_of
from tests.text_runs import write_text


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[StageTask], dict[str, Tensor]]:
    folder: Path = tmp_path_factory.mktemp("run")
    write_text(folder)
    task = task_of(folder)
    return [task.stage(number) for number in range(3)], batch_of(task)


def test_each_stage_takes_what_it_computes_with(stages: tuple[list[StageTask], dict[str, Tensor]]) -> None:
    each, _ = stages
    assert [stage.takes for stage in each] == [
        ("input_ids", "position_ids"),
        ("position_ids",),
        ("position_ids", "labels"),
    ]
    assert [(stage.number, stage.count, stage.width) for stage in each] == [(0, 3, 32), (1, 3, 32), (2, 3, 32)]


@pytest.mark.parametrize(
    ("number", "name", "value", "message"),
    [
        (0, "input_ids", -1, "input_ids from -1 to"),
        (0, "input_ids", 400, "input_ids from .* to 400, of 314"),
        (0, "position_ids", 32, "position_ids from 0 to 32, of 32"),
        (1, "position_ids", -1, "position_ids from -1"),
        (2, "labels", 400, "labels from .* to 400, of 314"),
        (2, "labels", IGNORED, f"labels from {IGNORED} to"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    stages: tuple[list[StageTask], dict[str, Tensor]], number: int, name: str, value: int, message: str
) -> None:
    each, batch = stages
    given = {taken: batch[taken].clone() for taken in each[number].takes}
    each[number].check(given)
    given[name][1, 3] = value
    with pytest.raises(ValueError, match=message):
        each[number].check(given)


def test_what_is_no_batch_is_refused(stages: tuple[list[StageTask], dict[str, Tensor]]) -> None:
    (first, middle, last), batch = stages
    positions = batch["position_ids"]
    wrong = [
        (first, {"position_ids": positions}, "a batch of"),
        (middle, {"position_ids": positions, "labels": positions}, "a batch of"),
        (middle, {"position_ids": positions.int()}, "torch.int32"),
        (middle, {"position_ids": positions[0]}, "of the shape"),
        (middle, {"position_ids": positions[:0]}, "of the shape"),
        (middle, {"position_ids": positions[:, :0]}, "of the shape"),
        (middle, {"position_ids": torch.zeros(1, 33, dtype=torch.int64)}, "of at most 32 tokens"),
        (last, {"position_ids": positions, "labels": batch["labels"][:2]}, "labels is torch.int64 of the shape"),
    ]
    for stage, given, message in wrong:
        with pytest.raises(ValueError, match=message):
            stage.check(given)


def test_a_batch_of_which_nothing_is_told_is_refused(tmp_path: Path) -> None:
    """Its mean loss would be no number."""
    write_text(tmp_path)
    task = task_of(tmp_path)
    task.begin, task.end = 1, 2
    stage, batch = task.stage(2), batch_of(task)
    labels = batch["labels"].clone()
    labels[:, 1:] = IGNORED
    stage.check({"position_ids": batch["position_ids"], "labels": labels})
    with pytest.raises(ValueError, match="no token has a label"):
        stage.check({"position_ids": batch["position_ids"], "labels": torch.full_like(labels, IGNORED)})
