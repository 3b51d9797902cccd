"""What a model's loss is on data to train on."""

from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.learning.tasks.measuring import BATCHES, SAMPLES, training_loss
from tests.batches import batches_from
from tests.learning.tasks.bytes_run import run_of
from tests.tiny import tiny_run


def tiny() -> Task:
    return create_task(tiny_run(), "tests.tiny")


def test_it_is_the_mean_over_the_first_batches_of_the_seed_and_trains_nothing() -> None:
    task = tiny()
    model = task.model()
    batches = batches_from(task, SAMPLES, 3, pytest.fail)
    losses = [task.loss(model, task.prepare(next(batches)), 0).mean for _ in range(BATCHES)]
    expected = torch.stack(losses).mean().item()
    assert training_loss(tiny_run(), tiny(), model, 3, pytest.fail) == pytest.approx(expected)
    assert training_loss(tiny_run(), task, model, 4, pytest.fail) != pytest.approx(expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_it_needs_no_data_that_is_held_out(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run = run.model_copy(update={"data": run.data.model_copy(update={"evaluation": None})})
    task = create_task(run, "tests.bytes_task")
    untrained, mad = task.model(), task.model()
    with torch.no_grad():
        for parameter in mad.parameters():
            parameter.mul_(1e6)
    assert 4.0 < training_loss(run, task, untrained, 3, pytest.fail) < 8.0  # ln 256 is 5.5
    assert not training_loss(run, task, mad, 3, pytest.fail) < 100.0
