"""A task in stages of wide linear layers: many parameters, few activations, and hardly any libraries."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.task import Feature, Loss, ParamGroup, Task
from dedloc_kit.records.evaluation import Evaluation

LAYERS, LENGTH, VOCABULARY = 3, 64, 97


class WideStage:
    """Token n is a wave of frequency n, and the loss how far what comes out is from the label's."""

    def __init__(self, run: RunConfig, number: int, count: int) -> None:
        self.width = int(run.task.options["width"])
        self.number, self.count, self.share = number, count, 1 / count
        self.takes = ("input_ids",) * (number == 0) + ("labels",) * (number == count - 1)
        self._seed, self._decay = seed_of(run.name, "weights", number), run.optimizer.weight_decay

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return nn.Sequential(*(nn.Linear(self.width, self.width, bias=False) for _ in range(LAYERS)))

    def outline(self) -> nn.Module:
        with torch.device("meta"):
            return self.model()

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        return [{"params": list(model.parameters()), "weight_decay": self._decay}]

    def check(self, batch: dict[str, Tensor]) -> None:
        """Only this machine's peers send any."""

    def forward(self, model: Any, hidden: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        hidden = self._wave(batch["input_ids"]) if hidden is None else hidden
        for layer in model:
            hidden = hidden + layer(hidden).tanh()
        if self.number < self.count - 1:
            return hidden
        return (hidden - self._wave(batch["labels"])).square().mean()

    def _wave(self, ids: Tensor) -> Tensor:
        return (ids[..., None] * torch.linspace(0.1, 3.0, self.width)).sin()


class WideOptions(Section):
    """The keys of `task` beside its name."""

    width: int


class WideStages(Task):
    Options = WideOptions
    sample_tokens = LENGTH

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        assert run.pipeline is not None
        self._stages = [WideStage(run, number, run.pipeline.count) for number in range(run.pipeline.count)]

    def unsupported(self, feature: Feature) -> str:
        return "" if feature in ("pipeline", "distributed_eval") else super().unsupported(feature)

    def stage(self, number: int) -> WideStage:
        return self._stages[number]

    def whole(self, stages: Sequence[nn.Module]) -> nn.Module:
        return nn.ModuleList(stages)

    def model(self) -> nn.Module:
        return self.whole([stage.model() for stage in self._stages])

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        return [{"params": list(model.parameters()), "weight_decay": self.run.optimizer.weight_decay}]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            ids = torch.randint(0, VOCABULARY, (microbatch, LENGTH), generator=generator)
            yield {"input_ids": ids, "labels": (ids + 1) % VOCABULARY}

    def loss(self, model: Any, batch: dict[str, Tensor], step: int) -> Loss:
        hidden: Tensor | None = None
        for stage, part in zip(self._stages, model, strict=True):
            hidden = stage.forward(part, hidden, batch)
        assert hidden is not None
        return Loss.of(hidden, len(batch["labels"]))

    def evaluate(self, model: Any) -> Evaluation:
        (batch,) = self.held_out_batches()
        with torch.no_grad():
            return self.evaluation_of(float(self.loss(model, batch, 0).mean))

    def held_out_batches(self) -> Sequence[dict[str, Tensor]]:
        return [next(self.batches(4, 0, lambda _: None))]

    def weight(self, batch: dict[str, Tensor]) -> float:
        return len(batch["labels"])

    def evaluation_of(self, loss: float) -> Evaluation:
        return Evaluation(loss=loss)


TASKS = {"wide-stages": WideStages}


def wide_run(stages: int, width: int, microbatches: int) -> RunConfig:
    """:param microbatches: in a global step, of one sample each"""
    source = {"dataset": "none/none"}
    return parse_run(
        {
            "name": f"wide-{width}",
            "global_batch": microbatches,
            "task": {"name": "wide-stages", "width": width},
            "data": {"train": [source], "evaluation": source},
            "optimizer": {"name": "lamb", "learning_rate": 1e-3, "warmup_steps": 0, "total_steps": 1000},
            "averaging": {"overlap": False},
            "pipeline": {"stages": stages, "activations": "8bit", "microbatch_tokens": LENGTH},
        }
    )
