"""A task that takes milliseconds, for tests with real processes: a small network that learns a linear map."""

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.task import Loss, ParamGroup, Task
from dedloc_kit.records.evaluation import Evaluation

WIDTH = 8


class TinyOptions(Section):
    """The keys of `task` beside its name."""

    hidden: int = 32
    init_from: str | None = None


class TinyTask(Task):
    """Batches are made from a seed, so that a test can make the same ones again.

    Faults are injected by name through the environment of one worker:
    `TINY_NAN_AT=3` makes the loss of its third microbatch NaN, `TINY_PAUSE=0.05` slows every microbatch down,
    `TINY_EVALUATION=60` lets every evaluation take so many seconds,
    `TINY_MEMORY=2` lets memory run out with more than two samples at once,
    `TINY_LOST_AT=5` lets it run out for good with the fifth microbatch of a host's second device,
    `TINY_SAME=1` makes all samples the same one, so that a step does not depend on who gave how many,
    `TINY_HOLD=PATH` lets it wait with every microbatch while that file exists,
    `TINY_FAULT` is described in tests/faults.py,
    `TINY_JOIN=PATH` lets it wait until that file exists before it connects to the others,
    `START_FILE=PATH` holds its data back until that file exists, so that several volunteers begin together.
    """

    Options = TinyOptions
    options: TinyOptions

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._seed = seed_of(run.run_id, "weights")
        self._nan_at = int(os.environ.get("TINY_NAN_AT", "0"))
        self._memory = int(os.environ.get("TINY_MEMORY", "1000000"))
        self._lost_at = int(os.environ.get("TINY_LOST_AT", "0"))
        self._pause = float(os.environ.get("TINY_PAUSE", "0"))
        self._batches = 0
        wait_for("TINY_JOIN")

    def model(self) -> torch.nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            hidden = self.options.hidden
            return torch.nn.Sequential(torch.nn.Linear(WIDTH, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, WIDTH))

    def groups(self, model: torch.nn.Module) -> list[ParamGroup]:
        return [{"params": list(model.parameters()), "weight_decay": self.run.optimizer.weight_decay}]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        generator = torch.Generator().manual_seed(seed)
        if "TINY_SAME" in os.environ:
            sample = torch.randn(1, WIDTH, generator=generator.manual_seed(self._seed))
            yield from itertools.repeat({"x": sample.expand(microbatch, WIDTH)})
        while True:
            yield {"x": torch.randn(microbatch, WIDTH, generator=generator)}

    def loss(self, model: torch.nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        time.sleep(self._pause)
        while os.path.exists(os.environ.get("TINY_HOLD", "")):
            time.sleep(0.02)
        if len(batch["x"]) > self._memory:
            raise torch.OutOfMemoryError
        if 0 < self._lost_at <= self._batches + 1 and threading.current_thread().name.startswith("device 1"):
            raise torch.OutOfMemoryError
        self._batches += 1
        mean: Tensor = ((model(batch["x"]) - batch["x"].roll(1, dims=1)) ** 2).mean()
        return Loss.of(mean * math.nan if self._batches == self._nan_at else mean, len(batch["x"]))

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        time.sleep(float(os.environ.get("TINY_EVALUATION", "0")))
        batch = next(self.batches(64, self._seed, lambda _: None))
        with torch.no_grad():
            return Evaluation(loss=float(((model(batch["x"]) - batch["x"].roll(1, dims=1)) ** 2).mean()))


def wait_for_start() -> None:
    wait_for("START_FILE")


def wait_for(variable: str) -> None:
    """Until the file exists that this variable of the environment names, if it does."""
    file = os.environ.get(variable)
    while file and not os.path.exists(file):
        time.sleep(0.02)


TASKS = {"tiny": TinyTask}

if "TINY_FAULT" in os.environ:  # for faults in the swarm: this module is the worker's way to code of the tests
    from tests.faults import inject

    inject(os.environ["TINY_FAULT"])


def tiny_run(name: str = "tiny", global_batch: int = 64, **sections: Any) -> RunConfig:
    """A run of the tiny task; the data it names is never read."""
    source = {"dataset": "none/none"}
    return parse_run(
        {
            "name": name,
            "global_batch": global_batch,
            "task": {"name": "tiny"},
            "data": {"train": [source], "evaluation": source},
            "optimizer": {"learning_rate": 0.01, "warmup_steps": 0, "total_steps": 1000},
            **sections,
        }
    )
