"""`dedloc evaluate` of a model of features: how well they tell classes that the model was not taught.

Two scores (Wu et al. 2018, arXiv 1805.01978, sections 3.4 and 4.2): a held-out sample has the class of its nearest
neighbours among the others, or the one that a linear classifier gives it, which learns from the run's training samples.
The model itself learns nothing more.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.pretrained import with_weights
from dedloc_kit.learning.evaluate.report import Report, Row, Scores, shown
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import ProbeSettings
from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.learning.tasks.features.neighbours import knn_accuracy
from dedloc_kit.learning.train.computing.device import describe_device
from dedloc_kit.machine.paths import expanded

_METRIC = "linear accuracy"
_MOMENTUM = 0.9

Maker = Callable[[Tensor], Tensor]
"""Makes features of a batch of samples."""


@dataclass
class _Collected:
    features: list[Tensor]
    """For each maker: float32 [samples, width], on the CPU."""
    names: list[str]
    """The classes."""


def evaluate(
    checkpoint: str, settings: ProbeSettings, session: Session, run: RunConfig, task: Task, baseline: bool = False
) -> Report:
    """Score the features that a checkpoint's model makes, and show the scores.

    :param task: the run's, which makes features
    :param baseline: do the same with random weights of the same architecture, and with the samples themselves

    Raises UserError for what the person can put right.
    """
    where = session.device
    with session:
        model = with_weights(task, run, expanded(checkpoint)).to(where)
        makers = [(checkpoint, task.features(model))]
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
        session.line(
            f"{len(learned.names)} training and {len(tested.names)} held-out samples, {len(classes)} classes, "
            f"on {describe_device(where)}"
        )
        labels, truth = (
            torch.tensor([classes[name] for name in names], device=where) for names in (learned.names, tested.names)
        )
        neighbours: dict[str, list[float]] = {}
        linear: dict[str, list[float]] = {}
        for (origin, _), train, test in zip(makers, learned.features, tested.features, strict=True):
            found = neighbours.setdefault(origin, [])
            found.append(knn_accuracy(test.to(where), truth, task.neighbours))
            # Random weights are others for each seed; else the seeds share the features.
            numbers = [len(found)] if origin == "random weights" else range(1, settings.seeds + 1)
            for number in numbers:
                seed = seed_of("evaluation", number)
                accuracy = linear_accuracy(train.to(where), labels, test.to(where), truth, settings, seed)
                linear.setdefault(origin, []).append(accuracy)
                session.line(f"{origin}, seed {number} of {settings.seeds}: linear {shown(accuracy, _METRIC)} %")
    rows = {origin: Row.of(linear[origin], knn=Scores.of(found)) for origin, found in neighbours.items()}
    trained = rows.pop(checkpoint)
    report = session.finish(
        Report(
            checkpoint=checkpoint,
            settings=settings.model_dump(mode="json"),
            samples={"train": len(learned.names), "held-out": len(tested.names)},
            metric=_METRIC,
            over="seeds",
            trained=trained,
            **({"random": rows.pop("random weights")} if baseline else {}),
            against=rows,
        )
    )
    error = (trained.scores[0] * (1 - trained.scores[0]) / len(tested.names)) ** 0.5
    session.line(
        f"the {len(tested.names)} held-out samples alone leave a standard error of {shown(error, _METRIC)} points"
    )
    return report


def random_makers(run: RunConfig, seeds: int, where: torch.device) -> Iterator[Maker]:
    """The model of the run before any step, for each seed another one."""
    for number in range(1, seeds + 1):
        task = create_task(run.model_copy(update={"seed": number}))
        yield task.features(task.model().to(where))


def linear_accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, settings: ProbeSettings, seed: int
) -> float:
    """The share of test samples whose class is told by a linear classifier that has learned from the training samples.

    Softmax regression from zero weights by SGD with momentum and a rate that falls along half a cosine, as in SwAV's
    linear evaluation (Caron et al. 2020), without augmentation and without weight decay. The features are first
    standardised by the training samples and divided by the root of their number, so that one rate suits any.

    :param train: float [samples, width]
    :param train_labels: [samples], from 0 on
    :param seed: decides the order of the samples
    """
    mean, scale = train.mean(0), train.std(0).clamp_min(1e-6) * math.sqrt(train.shape[1])
    train, test = (train - mean) / scale, (test - mean) / scale
    classifier = nn.Linear(train.shape[1], int(torch.cat([train_labels, test_labels]).max()) + 1).to(train.device)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    optimizer = torch.optim.SGD(classifier.parameters(), settings.learning_rate, momentum=_MOMENTUM)
    total = settings.epochs * math.ceil(len(train) / settings.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    order = torch.Generator().manual_seed(seed)
    for _ in range(settings.epochs):
        for some in torch.randperm(len(train), generator=order).to(train.device).split(settings.batch):
            functional.cross_entropy(classifier(train[some]), train_labels[some]).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    with torch.no_grad():
        return float((classifier(test).argmax(1) == test_labels).float().mean())


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
