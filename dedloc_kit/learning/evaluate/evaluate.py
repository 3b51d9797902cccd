"""`dedloc evaluate` of a language model: fine-tunings with several seeds, their mean and their spread."""

import json
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.classification import Classification
from dedloc_kit.learning.evaluate.dataset import load_dataset
from dedloc_kit.learning.evaluate.display import Display
from dedloc_kit.learning.evaluate.finetune import Samples, encode, fine_tune, seeded, steps_of
from dedloc_kit.learning.evaluate.ner import Ner
from dedloc_kit.learning.evaluate.pretrained import Pretrained, as_folder
from dedloc_kit.learning.evaluate.problem import Problem
from dedloc_kit.learning.evaluate.report import check_report, percent, spread, write_report
from dedloc_kit.learning.evaluate.settings import Settings
from dedloc_kit.learning.train.computing.device import describe_device, pick_device, set_threads
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.seeds import seed_of

_PROBLEMS: dict[str, type[Problem]] = {"ner": Ner, "classification": Classification}


Weights = Literal["trained", "random"]


@dataclass(frozen=True)
class _Candidate:
    """A model with the task in its own tokens."""

    name: str
    pretrained: Pretrained
    problem: Problem
    samples: Samples
    beside: bool


@dataclass
class Row:
    """The scores on the test split, from 0 to 1, of the fine-tunings that began with the same weights."""

    model: str
    weights: Weights
    beside: bool
    """A model that the checkpoint is measured against."""
    scores: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return statistics.mean(self.scores)

    @property
    def spread(self) -> float | None:
        return spread(self.scores)

    @property
    def label(self) -> str:
        return self.model if self.beside else f"{self.weights} weights"

    def as_json(self) -> dict[str, Any]:
        return {"scores": self.scores, "mean": self.mean, "spread": self.spread, "seconds": round(self.seconds, 1)}


@dataclass
class Comparison:
    checkpoint: str
    settings: Settings
    metric: str
    samples: dict[str, int]
    """How many each split has."""
    rows: list[Row]
    """The trained weights, with a baseline random ones, and the models that are scored beside it."""

    @property
    def margin(self) -> float | None:
        """By how much the trained weights beat random ones in the mean; none without the baseline."""
        random = [row for row in self.rows if row.weights == "random"]
        return self.rows[0].mean - random[0].mean if random else None

    def as_json(self) -> str:
        values: dict[str, Any] = {
            "checkpoint": self.checkpoint,
            "settings": self.settings.model_dump(mode="json"),
            "samples": self.samples,
            "metric": self.metric,
            **{row.weights: row.as_json() for row in self.rows if not row.beside},
            "against": {row.model: row.as_json() for row in self.rows if row.beside},
        }
        return json.dumps({**values, "margin": self.margin}, ensure_ascii=False, indent=2) + "\n"


def evaluate(
    checkpoint: str,
    settings: Settings,
    run: RunConfig | None = None,
    against: Sequence[str] = (),
    baseline: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int = 0,
    report: Path | None = None,
) -> Comparison:
    """Fine-tune the checkpoint once for each seed and show the scores (of what, `finetune.fine_tune` tells).

    The models `against` which it is to be measured do the same, and with `baseline` random weights of its own
    architecture; all rows see the same samples in the same order. `report` is a JSON file for the result. Raises
    UserError for what the person can put right.
    """
    check_report(report)
    _require_seqeval(settings)
    where = pick_device(device)
    set_threads(threads)
    kind = _PROBLEMS[settings.task]
    with ExitStack() as stack:
        names = [checkpoint, *against]
        folders = [stack.enter_context(as_folder(name, run)) for name in names]
        display = stack.enter_context(Display())
        models = [Pretrained(folder, settings.max_length) for folder in folders]
        dataset = load_dataset(settings, kind.check, warn=display.warn)
        problems = [kind(model.tokenizer, model.max_length, dataset.train) for model in models]
        classes = problems[0].classes
        if len(classes) < 2:
            raise UserError(f"all training samples have the class {classes[0]}; check --label-column")
        candidates = [
            _Candidate(name, model, problem, encode(dataset, problem), beside=number > 0)
            for number, (name, model, problem) in enumerate(zip(names, models, problems, strict=True))
        ]
        sizes = {"train": len(dataset.train), "validation": len(dataset.validation), "test": len(dataset.test)}
        display.line(
            f"{', '.join(f'{count} {split}' for split, count in sizes.items())} samples, "
            f"{len(classes)} classes, on {describe_device(where)}"
        )
        if dataset.repeated:
            display.line(f"{dataset.repeated} training samples were left out: they are in the other splits as well")
        planned: list[tuple[_Candidate, Weights]] = [(candidate, "trained") for candidate in candidates]
        if baseline:
            planned.insert(1, (candidates[0], "random"))
        display.expect(len(planned) * settings.seeds * steps_of(candidates[0].samples, settings))
        rows = [_fine_tuned(candidate, weights, settings, where, display) for candidate, weights in planned]
        evaluation = Comparison(checkpoint, settings, kind.metric, sizes, rows)
    _show(evaluation, display)
    if report is not None:
        write_report(report, evaluation.as_json())
    return evaluation


def _fine_tuned(
    candidate: _Candidate, weights: Weights, settings: Settings, where: torch.device, display: Display
) -> Row:
    """A fine-tuning for each seed."""
    row = Row(candidate.name, weights, candidate.beside)
    problem = candidate.problem
    for number in range(1, settings.seeds + 1):
        name = f"{row.label}, seed {number} of {settings.seeds}"
        started = time.monotonic()
        seed = seed_of("evaluation", number)
        with seeded(seed):
            model = candidate.pretrained.model(problem, weights == "random").to(where)
            on_step = partial(display.step, name, settings.epochs)
            row.scores.append(fine_tune(model, problem, candidate.samples, settings, seed, on_step))
        seconds = time.monotonic() - started
        row.seconds += seconds
        display.line(f"{name}: {problem.metric} {percent(row.scores[-1])} % after {seconds:.0f} s")
    return row


def _show(evaluation: Comparison, display: Display) -> None:
    """The table: a row for each kind of weights, all numbers in percent."""
    seeds = [f"seed {number}" for number in range(1, evaluation.settings.seeds + 1)]
    rows = [[row.label, *map(percent, (row.mean, row.spread)), *map(percent, row.scores)] for row in evaluation.rows]
    display.table([f"{evaluation.metric} in %", "mean", "spread", *seeds], rows)
    ours, *others = evaluation.rows
    for row in others:
        result = "beat" if ours.mean > row.mean else "do no better than"
        theirs = f"those of {row.model}" if row.beside else "random ones"
        display.line(f"trained weights {result} {theirs} ({100 * (ours.mean - row.mean):+.2f} points)")


def _require_seqeval(settings: Settings) -> None:
    if settings.task == "ner" and find_spec("seqeval") is None:
        raise UserError("seqeval, which scores entities, is not installed; install it with: pip install seqeval")
