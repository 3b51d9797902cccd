"""While the learning rate falls other data is read, if the run names some."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch

from dedloc_kit.run import RunConfig
from dedloc_kit.tasks import Batch
from dedloc_kit.tasks.mixtures import Mixtures
from tests import tiny
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
