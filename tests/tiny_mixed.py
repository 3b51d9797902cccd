"""A tiny model with a layer of experts, for tests with real processes: it learns by which of some directions it was
drawn from what to answer."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.experts.mixture import Mixture, imbalance_of
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.seeds import seed_of
from tests.tiny import WIDTH, tiny_run, wait_for_start

HIDDEN, TOKENS = 12, 6


class TinyMixed:
    """Tokens through a linear layer, a mixture and a linear layer; the mixture has a residual."""

    def __init__(self, run: RunConfig) -> None:
        assert run.experts is not None
        self._run, self._settings, self._seed = run, run.experts, seed_of(run.run_id, "weights")

    def why_without_experts(self) -> str:
        return ""

    def why_unwritten(self) -> str:
        return "no library has a tiny model with experts"

    def to_transformers(self, model: nn.Module, folder: Path) -> nn.Module:
        raise NotImplementedError

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            parts = [nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]
        return nn.ModuleList([parts[0], Mixture(0, self._settings, self._seed), parts[1]])

    def groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield {"x": torch.randn(microbatch, TOKENS, WIDTH, generator=generator)}

    def prepare(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return batch

    def loss(self, model: Any, batch: dict[str, Tensor], step: int) -> Tensor:
        first, mixture, last = model
        hidden = first(batch["x"])
        made = last(hidden + mixture(hidden))
        loss: Tensor = ((made - batch["x"].abs().roll(1, dims=2)) ** 2).mean()
        return loss + self._settings.balance * imbalance_of(model)

    def evaluate(self, model: nn.Module) -> Evaluation:
        with torch.no_grad():
            return Evaluation(loss=float(self.loss(model, next(self.batches(64, 0, print)), 0)))


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
