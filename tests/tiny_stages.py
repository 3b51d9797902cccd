"""A tiny model of linear layers that can be cut into stages, for tests with real processes."""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.task import Feature, Loss, ParamGroup, Task
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.swarm.pipeline import computing
from tests.tiny import wait_for_start

WIDTH, VOCABULARY, LENGTH = 8, 11, 4
TOLD = "STAGES_TOLD"
"""A folder: each process of a stage peer notes there what it has added to its gradients, a line of JSON for each."""


class TinyStage:
    """Embeds at the beginning, a loss at the end, one linear layer in each."""

    width = WIDTH

    def __init__(self, seed: int, number: int, count: int, decay: float) -> None:
        self._seed, self.number, self.count, self.share, self._decay = seed, number, count, 1 / count, decay
        self.takes = ("input_ids",) * (number == 0) + ("labels",) * (number == count - 1)

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of(self._seed, self.number))
            parts: dict[str, nn.Module] = {"layer": nn.Linear(WIDTH, WIDTH)}
            if self.number == 0:
                parts["embedding"] = nn.Embedding(VOCABULARY, WIDTH)
            if self.number == self.count - 1:
                parts["head"] = nn.Linear(WIDTH, VOCABULARY)
            return nn.ModuleDict(parts)

    def outline(self) -> nn.Module:
        with torch.device("meta"):
            return self.model()

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        return [{"params": list(model.parameters()), "weight_decay": self._decay}]

    def check(self, batch: dict[str, Tensor]) -> None:
        for name, values in batch.items():
            if not (int(values.min()) >= 0 and int(values.max()) < VOCABULARY):
                raise ValueError(f"{name} out of the vocabulary")

    def forward(self, model: Any, hidden: Tensor | None, batch: dict[str, Tensor]) -> Tensor:
        hidden = model["embedding"](batch["input_ids"]) if hidden is None else hidden
        hidden = model["layer"](hidden).tanh() + hidden
        if self.number < self.count - 1:
            return hidden
        logits = model["head"](hidden)
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


class Whole(nn.Module):
    def __init__(self, stages: Sequence[TinyStage], models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(models)
        self._stages = stages

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        hidden: Tensor | None = None
        for stage, model in zip(self._stages, self.stages, strict=True):
            hidden = stage.forward(model, hidden, batch)
        assert hidden is not None
        return hidden


class TinyStages(Task):
    """Batches follow from a seed: the labels are the ids before.

    In the environment of one worker `TINY_PAUSE=0.05` slows down what it drives, and `START_FILE=PATH` holds its data
    back whenever that file does not exist.
    """

    Options = Section
    sample_tokens = LENGTH

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        assert run.pipeline is not None
        self._seed, count, decay = seed_of(run.name, run.fingerprint), run.pipeline.count, run.optimizer.weight_decay
        self._stages = [TinyStage(self._seed, number, count, decay) for number in range(count)]

    def unsupported(self, feature: Feature) -> str:
        return "" if feature == "pipeline" else super().unsupported(feature)

    def stage(self, number: int) -> TinyStage:
        return self._stages[number]

    def whole(self, stages: Sequence[nn.Module]) -> Whole:
        return Whole(self._stages, stages)

    def model(self) -> Whole:
        return self.whole([stage.model() for stage in self._stages])

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        return [{"params": list(model.parameters()), "weight_decay": self.run.optimizer.weight_decay}]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            wait_for_start()
            time.sleep(float(os.environ.get("TINY_PAUSE", "0")))
            ids = torch.randint(0, VOCABULARY, (microbatch, LENGTH), generator=generator)
            yield {"input_ids": ids, "labels": (ids + 1) % VOCABULARY}

    def loss(self, model: Any, batch: dict[str, Tensor], step: int) -> Loss:
        return Loss.of(model(batch), len(batch["labels"]))

    def evaluate(self, model: Any) -> Evaluation:
        with torch.no_grad():
            return Evaluation(loss=float(model(next(self.batches(32, self._seed, lambda _: None)))))


TASKS = {"tiny-stages": TinyStages}


def _tell_what_is_added(folder: Path) -> None:
    add = computing.StageComputer._add

    def told(self: Any, given: Any, *rest: Any) -> None:
        add(self, given, *rest)
        line = {
            "stage": given.call.stage,
            "step": given.call.step,
            "driver": given.driver,
            "number": given.call.number,
            **{name: values.tolist() for name, values in given.batch.items()},
        }
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    computing.StageComputer._add = told  # type: ignore[method-assign,assignment]


def plain_loop(run: RunConfig, batches: Sequence[Sequence[dict[str, Tensor]]]) -> dict[str, Tensor]:
    """The parameters that one process has after these global steps, by their names in the whole model."""
    from dedloc_kit.learning.train.optim.build import build_optimizer
    from dedloc_kit.learning.train.schedule import learning_rate

    task = TinyStages(run)
    model = task.model()
    optimizers = [
        build_optimizer(run.optimizer, stage.groups(part))
        for stage, part in zip(task._stages, model.stages, strict=True)
    ]
    for step, of_step in enumerate(batches):
        total = sum(len(batch["input_ids"]) for batch in of_step)
        for batch in of_step:
            (model(batch) * len(batch["input_ids"]) / total).backward()
        for part, optimizer in zip(model.stages, optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(part.parameters(), run.optimizer.max_grad_norm)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(run.optimizer, step)
            optimizer.step()
            part.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


if TOLD in os.environ and computing.StageComputer._add.__name__ != "told":
    _tell_what_is_added(Path(os.environ[TOLD]))
