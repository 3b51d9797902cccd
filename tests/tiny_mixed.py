"""A tiny model with a layer of experts, for tests with real processes: it learns by which of some directions it was
drawn from what to answer."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.experts.mixture import Mixture, imbalance_of
from dedloc_kit.learning.task import Feature, Loss, ParamGroup, Task
from dedloc_kit.records.evaluation import Evaluation
from tests.tiny import WIDTH, tiny_run, wait_for_start

HIDDEN, TOKENS = 12, 6


class TinyMixed(Task):
    """Tokens through a linear layer, a mixture and a linear layer; the mixture has a residual."""

    Options = Section

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        assert run.experts is not None
        self._settings, self._seed = run.experts, seed_of(run.run_id, "weights")

    def unsupported(self, feature: Feature) -> str:
        return "" if feature == "experts" else super().unsupported(feature)

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            parts = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
        return nn.ModuleList([parts[0], Mixture(0, self._settings, self._seed), parts[1]])

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        return [{"params": list(model.parameters()), "weight_decay": self.run.optimizer.weight_decay}]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield {"x": torch.randn(microbatch, TOKENS, WIDTH, generator=generator)}

    def loss(self, model: Any, batch: dict[str, Tensor], step: int) -> Loss:
        first, mixture, last = model
        hidden = first(batch["x"])
        made = last(hidden + mixture(hidden))
        mean = ((made - batch["x"].abs().roll(1, dims=2)) ** 2).mean()
        return Loss.of(mean + self._settings.aux_loss_weight * imbalance_of(model), len(made))

    def evaluate(self, model: nn.Module) -> Evaluation:
        with torch.no_grad():
            return Evaluation(loss=float(self.loss(model, next(self.batches(64, 0, print)), 0).mean))


TASKS = {"tiny-mixed": TinyMixed}


def mixed_run(**sections: Any) -> RunConfig:
    """Six experts, each of which two of three rows or so go to."""
    return tiny_run(
        "mixed",
        **{
            "global_batch": 48,
            "task": {"name": "tiny-mixed"},
            "experts": {"layers": [0], "grid": [2, 3], "width": WIDTH, "hidden": HIDDEN},
            "averaging": {"overlap": False, "compression": "none"},
            **sections,
        },
    )
