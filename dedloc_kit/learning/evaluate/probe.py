"""`dedloc evaluate` where a model makes features: what these know of classes that nobody taught it.

Two scores (Wu et al. 2018, arXiv 1805.01978, sections 3.4 and 4.2): each held-out sample's class as its nearest
neighbours among the others tell it, and as a linear classifier does that has learned from the run's training samples.
The model itself learns nothing more.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.display import Display
from dedloc_kit.learning.evaluate.linear import linear_accuracy
from dedloc_kit.learning.evaluate.pretrained import with_weights
from dedloc_kit.learning.evaluate.report import check_report, percent, spread, write_report
from dedloc_kit.learning.evaluate.settings import ProbeSettings
from dedloc_kit.learning.task import Probeable, Task, create_task
from dedloc_kit.learning.tasks.features.neighbours import knn_accuracy
from dedloc_kit.learning.train.computing.device import describe_device, pick_device, set_threads
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.seeds import seed_of

Maker = Callable[[Tensor], Tensor]
"""Makes features of a batch of samples."""
Origin = Literal["trained weights", "random weights", "no model"]


@dataclass
class Row:
    """The accuracies on the held-out samples, from 0 to 1, of features of one origin."""

    features: Origin
    knn: list[float] = field(default_factory=list)
    """One; of random weights one for each seed."""
    linear: list[float] = field(default_factory=list)
    """One for each seed."""

    def as_json(self) -> dict[str, Any]:
        scores = {"k-NN accuracy": self.knn, "linear accuracy": self.linear}
        return {
            name: {"scores": found, "mean": statistics.mean(found), "spread": spread(found)}
            for name, found in scores.items()
        }


@dataclass
class _Collected:
    features: list[Tensor]
    """For each maker: float32 [samples, width], on the CPU."""
    names: list[str]
    """The classes."""


def probe(
    checkpoint: str,
    settings: ProbeSettings,
    run: RunConfig,
    task: Task,
    baseline: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int = 0,
    report: Path | None = None,
) -> list[Row]:
    """Score the features that a checkpoint's model makes, and show the scores.

    :param task: the run's, Probeable
    :param baseline: do the same with random weights of the same architecture, and with what samples are without a model
    :param report: a JSON file for the result
    Raises UserError for what the person can put right.
    """
    assert isinstance(task, Probeable)
    check_report(report)
    where = pick_device(device)
    set_threads(threads)
    with Display() as display:
        makers: list[tuple[Origin, Maker]] = [
            ("trained weights", task.features(with_weights(task, run, Path(checkpoint).expanduser()).to(where)))
        ]
        if baseline:
            makers += [("random weights", maker) for maker in random_makers(run, settings.seeds, where)]
            makers += [("no model", task.bare_features)]
        learned = _collect(task.labelled(held_out=False), [maker for _, maker in makers], settings.train_samples)
        tested = _collect(task.labelled(held_out=True), [maker for _, maker in makers], None)
        classes = {name: number for number, name in enumerate(sorted({*learned.names, *tested.names}))}
        if len({*learned.names}) < 2:
            raise UserError(
                f"the {len(learned.names)} training samples have one class or none; a linear classifier needs samples "
                "of several classes, take more or in a mixed order"
            )
        display.line(
            f"{len(learned.names)} training and {len(tested.names)} held-out samples, {len(classes)} classes, "
            f"on {describe_device(where)}"
        )
        labels, truth = (
            torch.tensor([classes[name] for name in names], device=where) for names in (learned.names, tested.names)
        )
        rows: dict[Origin, Row] = {}
        for (origin, _), train, test in zip(makers, learned.features, tested.features, strict=True):
            row = rows.setdefault(origin, Row(origin))
            row.knn.append(knn_accuracy(test.to(where), truth, task.neighbours))
            # Random weights are others for each seed; else the seeds share the features.
            numbers = [len(row.knn)] if origin == "random weights" else range(1, settings.seeds + 1)
            for number in numbers:
                seed = seed_of("evaluation", number)
                row.linear.append(linear_accuracy(train.to(where), labels, test.to(where), truth, settings, seed))
                display.line(f"{origin}, seed {number} of {settings.seeds}: linear {percent(row.linear[-1])} %")
    _show(list(rows.values()), settings, len(tested.names), display)
    if report is not None:
        values: dict[str, Any] = {
            "checkpoint": checkpoint,
            "settings": settings.model_dump(mode="json"),
            "samples": {"train": len(learned.names), "held-out": len(tested.names)},
            "features": {row.features: row.as_json() for row in rows.values()},
        }
        write_report(report, json.dumps(values, indent=2) + "\n")
    return list(rows.values())


def random_makers(run: RunConfig, seeds: int, where: torch.device) -> Iterator[Maker]:
    """The model of the run before any step, for each seed another one."""
    for number in range(1, seeds + 1):
        task = create_task(run.model_copy(update={"seed": number}))
        assert isinstance(task, Probeable)
        yield task.features(task.build_model().to(where))


def _collect(batches: Iterator[tuple[Tensor, list[str]]], makers: list[Maker], most: int | None) -> _Collected:
    """All makers' features of the first so many samples, which are gone through once."""
    parts: list[list[Tensor]] = [[] for _ in makers]
    names: list[str] = []
    for samples, classes in batches:
        for found, maker in zip(parts, makers, strict=True):
            found.append(maker(samples).float().cpu())
        names += classes
        if most is not None and len(names) >= most:
            break
    return _Collected([torch.cat(found)[:most] for found in parts] if names else [], names[:most])


def _show(rows: list[Row], settings: ProbeSettings, tested: int, display: Display) -> None:
    """The table, all numbers in percent."""
    seeds = [f"seed {number}" for number in range(1, settings.seeds + 1)]
    display.table(
        ["accuracy in %", "k-NN", "linear, mean", "spread", *seeds],
        [
            [
                row.features,
                *map(percent, (statistics.mean(row.knn), statistics.mean(row.linear), spread(row.linear))),
                *map(percent, row.linear),
            ]
            for row in rows
        ],
    )
    error = (rows[0].linear[0] * (1 - rows[0].linear[0]) / tested) ** 0.5
    display.line(f"the {tested} held-out samples alone leave a standard error of {percent(error)} points")
