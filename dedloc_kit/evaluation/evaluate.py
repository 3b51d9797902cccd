"""`dedloc evaluate` of a language model: fine-tunings with several seeds, their mean and their spread."""

import json
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.errors import UserError
from dedloc_kit.evaluation.classification import Classification
from dedloc_kit.evaluation.dataset import load_dataset
from dedloc_kit.evaluation.display import Display
from dedloc_kit.evaluation.finetune import encode, fine_tune, seeded, steps_of
from dedloc_kit.evaluation.ner import Ner
from dedloc_kit.evaluation.pretrained import Pretrained, as_folder
from dedloc_kit.evaluation.problem import Problem
from dedloc_kit.evaluation.report import check_report, percent, write_report
from dedloc_kit.evaluation.settings import Settings
from dedloc_kit.run import RunConfig, seed_of
from dedloc_kit.training.device import describe_device, pick_device, set_threads

_PROBLEMS: dict[str, type[Problem]] = {"ner": Ner, "classification": Classification}


@dataclass
class Row:
    """The scores on the test split, from 0 to 1, of the fine-tunings that began with the same kind of weights."""

    weights: Literal["trained", "random"]
    scores: list[float] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return statistics.mean(self.scores)

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over the seeds; none for a single one."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None


@dataclass
class Evaluation:
    checkpoint: str
    settings: Settings
    metric: str
    samples: dict[str, int]
    """How many each split has."""
    rows: list[Row]
    """The trained weights and, with a baseline, random ones."""

    @property
    def margin(self) -> float | None:
        """By how much the trained weights beat random ones in the mean; none without the baseline."""
        return self.rows[0].mean - self.rows[1].mean if len(self.rows) > 1 else None

    def as_json(self) -> str:
        values: dict[str, Any] = {
            "checkpoint": self.checkpoint,
            "settings": self.settings.model_dump(mode="json"),
            "samples": self.samples,
            "metric": self.metric,
        }
        for row in self.rows:
            values[row.weights] = {
                "scores": row.scores,
                "mean": row.mean,
                "spread": row.spread,
                "seconds": round(row.seconds, 1),
            }
        return json.dumps({**values, "margin": self.margin}, ensure_ascii=False, indent=2) + "\n"


def evaluate(
    checkpoint: str,
    settings: Settings,
    run: RunConfig | None = None,
    baseline: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int = 0,
    report: Path | None = None,
) -> Evaluation:
    """Fine-tune the checkpoint once for each seed and show the scores (of what, `finetune.fine_tune` tells).

    `baseline` does the same from random weights of the same architecture; both rows see the same samples in the same
    order. `report` is a JSON file for the result. Raises UserError for what the person can put right.
    """
    check_report(report)
    _require_seqeval(settings)
    where = pick_device(device)
    set_threads(threads)
    kind = _PROBLEMS[settings.task]
    with as_folder(checkpoint, run) as folder, Display() as display:
        pretrained = Pretrained(folder, settings.max_length)
        dataset = load_dataset(settings, kind.check, warn=display.warn)
        problem = kind(pretrained.tokenizer, pretrained.max_length, dataset.train)
        if len(problem.classes) < 2:
            raise UserError(f"all training samples have the class {problem.classes[0]}; check --label-column")
        samples = encode(dataset, problem)
        sizes = {"train": len(samples.train), "validation": len(samples.validation), "test": len(samples.test)}
        display.line(
            f"{', '.join(f'{count} {split}' for split, count in sizes.items())} samples, "
            f"{len(problem.classes)} classes, on {describe_device(where)}"
        )
        if dataset.repeated:
            display.line(f"{dataset.repeated} training samples were left out: they are in the other splits as well")
        rows = [Row("trained"), Row("random")] if baseline else [Row("trained")]
        display.expect(len(rows) * settings.seeds * steps_of(samples, settings))
        for row in rows:
            for number in range(1, settings.seeds + 1):
                name = f"{row.weights} weights, seed {number} of {settings.seeds}"
                started = time.monotonic()
                seed = seed_of("evaluation", number)
                with seeded(seed):
                    model = pretrained.model(problem, row.weights == "random").to(where)
                    on_step = partial(display.step, name, settings.epochs)
                    row.scores.append(fine_tune(model, problem, samples, settings, seed, on_step))
                seconds = time.monotonic() - started
                row.seconds += seconds
                display.line(f"{name}: {problem.metric} {percent(row.scores[-1])} % after {seconds:.0f} s")
        evaluation = Evaluation(checkpoint, settings, problem.metric, sizes, rows)
    _show(evaluation, display)
    if report is not None:
        write_report(report, evaluation.as_json())
    return evaluation


def _show(evaluation: Evaluation, display: Display) -> None:
    """The table: a row for each kind of weights, all numbers in percent."""
    seeds = [f"seed {number}" for number in range(1, evaluation.settings.seeds + 1)]
    rows = [
        [f"{row.weights} weights", *map(percent, (row.mean, row.spread)), *map(percent, row.scores)]
        for row in evaluation.rows
    ]
    display.table([f"{evaluation.metric} in %", "mean", "spread", *seeds], rows)
    if evaluation.margin is not None:
        result = "beat" if evaluation.margin > 0 else "do no better than"
        display.line(f"trained weights {result} random ones ({100 * evaluation.margin:+.2f} points)")


def _require_seqeval(settings: Settings) -> None:
    if settings.task == "ner" and find_spec("seqeval") is None:
        raise UserError("seqeval, which scores entities, is not installed; install it with: pip install seqeval")
