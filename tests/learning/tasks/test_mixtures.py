"""While the learning rate falls other data is read, if the run names some."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Batch, create_task
from dedloc_kit.learning.tasks.in_blocks import DECAY, ORIGIN, origin_of
from dedloc_kit.learning.tasks.mixtures import Mixtures, in_blocks, of_decay
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.trust import TrustConfig
from tests import tiny
from tests.text_runs import text_run, write_text
from tests.tiny import TinyTask, tiny_run

STEADY = {"schedule": "warmup-stable-decay", "warmup_steps": 0, "total_steps": 1000}


class Naming(TinyTask):
    """Its batches tell which data they are of, and how many were read of it before."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._named = [float(source.dataset.rpartition("/")[2]) for source in run.data.train]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
        for number in range(100):
            yield {"x": torch.tensor([*self._named, float(number)]).expand(microbatch, -1)}


@contextmanager
def mixtures(monkeypatch: pytest.MonkeyPatch, falls: Callable[[], bool], **data: Any) -> Iterator[Iterator[Batch]]:
    monkeypatch.setitem(tiny.TASKS, "tiny", Naming)
    run = tiny_run(data={"train": [{"dataset": "a/1"}], **data}, optimizer=STEADY)
    with Mixtures(run, Naming(run), "tests.tiny", falls).batches(2, 0, pytest.fail, ahead=3) as batches:
        yield batches


def read(batches: Iterator[Batch], count: int) -> list[list[float]]:
    return [batch["x"][1].tolist() for batch in islice(batches, count)]


def test_the_last_mixture_is_read_from_the_batch_on_with_which_the_rate_falls_and_then_the_first_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = False
    with mixtures(monkeypatch, lambda: now, decay=[{"dataset": "a/2"}, {"dataset": "a/3"}]) as batches:
        assert read(batches, 2) == [[1.0, 0.0], [1.0, 1.0]]
        now = True
        assert read(batches, 2) == [[2.0, 3.0, 0.0], [2.0, 3.0, 1.0]]
        now = False  # the run has gone back to before it
        assert read(batches, 1) == [[1.0, 2.0]]


def test_a_run_without_a_last_mixture_reads_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with mixtures(monkeypatch, lambda: True) as batches:
        assert read(batches, 2) == [[1.0, 0.0], [1.0, 1.0]]


def checked(run: RunConfig) -> RunConfig:
    return run.model_copy(update={"trust": TrustConfig(checks="on")})


def test_with_checks_each_batch_has_a_name_which_tells_the_mixture_and_by_which_it_is_made_again(
    tmp_path: Path,
) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    run = checked(run.model_copy(update={"data": run.data.model_copy(update={"decay": run.data.train})}))
    falls = False
    with Mixtures(run, create_task(run), None, lambda: falls).batches(3, 5, pytest.fail, ahead=2) as batches:
        usual = list(islice(batches, 3))
        falls = True
        last = list(islice(batches, 3))
    assert [origin_of(batch).block for batch in (*usual, *last)] == [0, 0, 0, DECAY, DECAY, DECAY]
    for found, blocks in (
        (usual, in_blocks(run, create_task(run), 5, pytest.fail)),
        (last, of_decay(run, None, 5, pytest.fail)),
    ):
        for batch in found:
            again = blocks.derive(origin_of(batch))
            assert all(torch.equal(values, again[name]) for name, values in batch.items())
    assert not torch.equal(usual[0]["input_ids"], last[0]["input_ids"])


def test_without_checks_batches_are_those_of_the_task_as_ever(tmp_path: Path) -> None:
    write_text(tmp_path)
    run = text_run(tmp_path, "causal")
    with Mixtures(run, create_task(run), None, lambda: False).batches(3, 5, pytest.fail, ahead=2) as batches:
        for found, expected in zip(islice(batches, 4), create_task(run).batches(3, 5, pytest.fail), strict=False):
            assert ORIGIN not in found
            assert torch.equal(found["input_ids"], expected["input_ids"])


def test_a_task_that_cannot_be_checked_is_not_created_where_checks_are_on(tmp_path: Path) -> None:
    write_text(tmp_path)
    with pytest.raises(UserError, match=r"attention_dropout is 0\.1, .*; set it to 0; or remove trust\.checks"):
        create_task(checked(text_run(tmp_path, "causal", model={"attention_dropout": 0.1})))
    with pytest.raises(UserError, match="the task TinyTask does not promise"):
        create_task(checked(tiny_run()), "tests.tiny")
