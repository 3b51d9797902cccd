"""The task of docs/adding_a_task.md: a module outside the package, and what the guide promises of every task."""

import re
from pathlib import Path

import pytest

import tests.bytes_task
from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.learning.train.optim.build import build_optimizer
from tests.batches import batches_from
from tests.learning.tasks.bytes_run import run_of

GUIDE = Path(__file__).parents[3] / "docs" / "adding_a_task.md"


def task_of(folder: Path) -> Task:
    return create_task(run_of(folder), "tests.bytes_task")


def test_it_learns_what_comes_next(tmp_path: Path) -> None:
    task = task_of(tmp_path)
    model = task.model()
    optimizer = build_optimizer(run_of(tmp_path).optimizer, task.groups(model))
    before = task.evaluate(model).loss
    batches = batches_from(task, 8, 0, print)
    for step in range(30):
        task.loss(model, task.prepare(next(batches)), step).mean.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert task.evaluate(model).loss < 0.75 * before


def test_options_and_data_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^task.sequence_lenght is not a known key; did you mean 'sequence_length'"):
        create_task(run_of(tmp_path, sequence_lenght=3), "tests.bytes_task")
    task = task_of(tmp_path)
    (tmp_path / "test.txt").write_text("short\n", encoding="utf-8")
    with pytest.raises(UserError, match="holds less than one sample"):
        task.evaluate(task.model())


def test_the_guide_shows_this_task_as_it_is() -> None:
    module = Path(tests.bytes_task.__file__).read_text(encoding="utf-8")
    assert len(module.splitlines()) < 150
    shown = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert shown
    assert all(excerpt.strip() in module for excerpt in shown), "docs/adding_a_task.md is behind tests/bytes_task.py"
