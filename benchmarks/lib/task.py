"""Tasks that a benchmark can watch: a device that takes a fixed time, and the real ALBERT.

Both write down when the device was at work, one JSON line for each microbatch. Set through the environment of one
peer's process: `BENCH_LOG` is that file, `BENCH_START` a file until whose existence there is no data (so that all
peers begin together), `BENCH_SLOWNESS` how many times as long the simulated device takes, `BENCH_STRIKE` what
benchmarks/lib/stages.py reads.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.task import Loss, Task
from dedloc_kit.learning.tasks.albert import Albert
from dedloc_kit.records.evaluation import Evaluation

_POLL_SECONDS = 0.01
SPREAD = 1_000_003
"""How many different gradients there are: windows into one long random tensor."""


class Device:
    """Measures a device, or plays one that takes a fixed time for a microbatch.

    A microbatch begins when the loss is asked for and ends when its backward pass has filled all gradients.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._log = open(os.environ.get("BENCH_LOG", os.devnull), "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.monotonic()

    def watch(self, loss: Tensor, samples: int) -> None:
        """Take the end of the backward pass of this loss as the end of the microbatch."""

        def end() -> None:
            time.sleep(max(0.0, self._began + self._seconds - time.monotonic()))
            self._log.write(json.dumps({"begin": self._began, "end": time.monotonic(), "samples": samples}) + "\n")

        def when_backward_begins(_: Tensor) -> None:
            torch.autograd.Variable._execution_engine.queue_callback(end)

        loss.register_hook(when_backward_begins)


def wait_for_start() -> None:
    """Hold the data back until the benchmark says so."""
    start = os.environ.get("BENCH_START")
    while start and not os.path.exists(start):
        time.sleep(_POLL_SECONDS)


class SimulatedOptions(Section):
    """The keys of `task` beside its name."""

    parameters: int
    seconds: float
    """Of a microbatch."""


class SimulatedTask(Task):
    """A model of ALBERT-like tensors whose gradients cost no more than their copying; the CPU idles meanwhile."""

    Options = SimulatedOptions
    options: SimulatedOptions

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._seed = seed_of(run.run_id, "weights")
        self._device = Device(self.options.seconds * float(os.environ.get("BENCH_SLOWNESS", "1")))
        self._noise: Tensor | None = None
        self._microbatches = 0

    def model(self) -> nn.Module:
        generator = torch.Generator().manual_seed(self._seed)
        tensors = [torch.randn(shape, generator=generator) * 0.02 for shape in shapes(self.options.parameters)]
        return nn.ParameterList([nn.Parameter(tensor) for tensor in tensors])

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        while True:
            yield {"x": torch.zeros(microbatch, 1)}

    def loss(self, model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        parameters = list(model.parameters())
        if self._noise is None:
            size = sum(parameter.numel() for parameter in parameters) + SPREAD
            self._noise = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 1e-3
        self._device.begin()
        self._microbatches += 1
        offset = seed_of(os.getpid(), self._microbatches) % SPREAD
        loss: Tensor = _ReadyGradients.apply(self._noise[offset:], *parameters)  # type: ignore[no-untyped-call]
        self._device.watch(loss, len(batch["x"]))
        return Loss.of(loss, len(batch["x"]))

    def evaluate(self, model: nn.Module) -> Evaluation:
        return Evaluation(loss=1.0)


class _ReadyGradients(torch.autograd.Function):
    """A loss of 1 whose gradients are there already, one after the other in a flat tensor."""

    @staticmethod
    def forward(ctx: Any, gradients: Tensor, *parameters: Tensor) -> Tensor:
        ctx.gradients, ctx.shapes = gradients, [parameter.shape for parameter in parameters]
        return torch.ones(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor | None, ...]:
        pieces = ctx.gradients[: sum(map(math.prod, ctx.shapes))].split(list(map(math.prod, ctx.shapes)))
        return None, *[piece.view(shape).clone() for piece, shape in zip(pieces, ctx.shapes, strict=True)]


def shapes(parameters: int) -> list[tuple[int, ...]]:
    """Shapes with so many parameters in all, in ALBERT-large's proportions: one layer that all depths share, and a
    vocabulary that takes what is left."""
    hidden = max(8, int(math.sqrt(parameters / 16.5)) // 8 * 8)
    embedding = max(1, hidden // 8)
    layer = [(hidden, hidden), (hidden,)] * 4 + [(hidden,), (hidden,)]
    layer += [(4 * hidden, hidden), (4 * hidden,), (hidden, 4 * hidden), (hidden,), (hidden,), (hidden,)]
    rest = [(hidden, embedding), (hidden,), (hidden, hidden), (hidden,)]
    left = parameters - sum(map(math.prod, layer + rest))
    vocabulary, bias = divmod(max(left, embedding), embedding)
    return [(vocabulary, embedding), *rest, *layer, *([(bias,)] if bias else [])]


class WatchedAlbert(Albert):
    """The real ALBERT task, with its device measured."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._device = Device()

    def batches_of(self, items: Iterable[Any], microbatch: int, seed: int) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        yield from super().batches_of(items, microbatch, seed)

    def loss(self, model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        self._device.begin()
        loss = super().loss(model, batch, step)
        self._device.watch(loss.total, len(batch["input_ids"]))
        return loss


TASKS = {"simulated": SimulatedTask, "watched-albert": WatchedAlbert}


def simulated_run(name: str, parameters: int, seconds: float, global_batch: int, **sections: Any) -> RunConfig:
    """A run of the simulated task; one microbatch takes `seconds`. The data that it names is never read."""
    return parse_run(
        {
            "name": name,
            "global_batch": global_batch,
            "task": {"name": "simulated", "parameters": parameters, "seconds": seconds},
            "data": {"train": [{"dataset": "none/none"}]},
            "optimizer": {"learning_rate": 1e-3, "warmup_steps": 0, "total_steps": 100_000},
            **sections,
        }
    )


if "BENCH_STRIKE" in os.environ:  # this module is the worker's way to code of the benchmarks
    from benchmarks.lib.stages import inject

    inject(Path(os.environ["BENCH_STRIKE"]))
