"""A task with experts whose device takes a fixed time: what a microbatch takes beside that, it waits for experts."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lib.task import Device, simulated_run, wait_for_start
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.experts.mixture import Mixture, imbalance_of
from dedloc_kit.learning.task import Feature, Loss, ParamGroup, Task
from dedloc_kit.records.evaluation import Evaluation

NOWHERE = {"dataset": "none/none"}
"""Data that the run names and nobody reads."""
WIDTH, HIDDEN, TOKENS, GRID = 64, 64, 32, (2, 4)


class MixedOptions(Section):
    """The keys of `task` beside its name."""

    seconds: float
    """Of a microbatch, beside its calls."""


class SimulatedMixed(Task):
    """Tokens through a linear layer, a mixture with a residual, and a linear layer."""

    Options = MixedOptions
    options: MixedOptions

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        assert run.experts is not None
        self._settings, self._seed = run.experts, seed_of(run.run_id, "weights")
        self._device = Device()

    def unsupported(self, feature: Feature) -> str:
        return "" if feature == "experts" else super().unsupported(feature)

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            width = self._settings.width
            first, last = nn.Linear(width, width), nn.Linear(width, width)
        return nn.ModuleList([first, Mixture(0, self._settings, self._seed), last])

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        return [{"params": list(model.parameters()), "weight_decay": self.run.optimizer.weight_decay}]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield {"x": torch.randn(microbatch, TOKENS, self._settings.width, generator=generator)}

    def loss(self, model: Any, batch: dict[str, Tensor], step: int) -> Loss:
        time.sleep(self.options.seconds)
        self._device.begin()
        loss = self._loss(model, batch)
        self._device.watch(loss, len(batch["x"]))
        return Loss.of(loss, len(batch["x"]))

    def evaluate(self, model: nn.Module) -> Evaluation:
        generator = torch.Generator().manual_seed(0)
        batch = {"x": torch.randn(16, TOKENS, self._settings.width, generator=generator)}
        with torch.no_grad():
            return Evaluation(loss=float(self._loss(model, batch)))

    def _loss(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        first, mixture, last = model
        hidden = first(batch["x"])
        loss: Tensor = (last(hidden + mixture(hidden)) - batch["x"].abs().roll(1, dims=2)).square().mean()
        return loss + self._settings.aux_loss_weight * imbalance_of(model)


TASKS = {"simulated-mixed": SimulatedMixed}


def mixed_run(
    seconds: float,
    global_batch: int,
    grid: tuple[int, int] = GRID,
    width: int = WIDTH,
    hidden: int = HIDDEN,
    **sections: Any,
) -> RunConfig:
    """:param seconds: of a microbatch, beside its calls"""
    return simulated_run(
        "mixed",
        1,
        seconds,
        global_batch,
        task={"name": "simulated-mixed", "seconds": seconds},
        experts={"layers": [0], "grid": list(grid), "width": width, "hidden": hidden},
        averaging={"overlap": False},
        data={"train": [NOWHERE], "evaluation": NOWHERE},
        **sections,
    )
