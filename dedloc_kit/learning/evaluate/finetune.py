"""`dedloc evaluate` by fine-tuning: the whole model learns a labelled task for a few epochs, with several seeds."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.dataset import Dataset, load_dataset
from dedloc_kit.learning.evaluate.pretrained import forward, opened
from dedloc_kit.learning.evaluate.problems import PROBLEMS, Problem, Sample
from dedloc_kit.learning.evaluate.report import Report, Row, shown
from dedloc_kit.learning.evaluate.session import Session
from dedloc_kit.learning.evaluate.settings import Settings
from dedloc_kit.learning.train.schedule import learning_rate

_POOL = 32
"""Batches whose samples are sorted by length together: more waste less on padding and mix less."""
_SCORING = 4
"""How many times as many samples go through the model at once where no gradient is needed."""

OnStep = Callable[[int, float], None]
"""Is called after each step with the epoch (from 1) and the batch's loss."""


@dataclass(frozen=True)
class Samples:
    """A dataset as tokens."""

    train: list[Sample]
    validation: list[Sample]
    test: list[Sample]
    pad: int
    """The token that fills up a batch."""


def evaluate(
    checkpoint: str,
    settings: Settings,
    session: Session,
    run: RunConfig | None = None,
    against: Sequence[str] = (),
    baseline: bool = False,
) -> Report:
    """Fine-tune the checkpoint once for each seed, score it on the test split and show the scores.

    All rows see the same samples in the same order.

    :param run: of a checkpoint that is weights alone
    :param against: models to do the same with
    :param baseline: do the same with random weights of the checkpoint's architecture

    Raises UserError for what the person can put right.
    """
    if settings.task == "ner" and find_spec("seqeval") is None:
        raise UserError("seqeval, which scores entities, is not installed; install it with: pip install seqeval")
    kind = PROBLEMS[settings.task]
    names = [checkpoint, *against]
    with opened(names, run, settings.max_length) as models, session:
        dataset = load_dataset(settings, kind.check, warn=session.warn)
        problems = [kind(model.tokenizer, model.max_length, dataset.train) for model in models]
        classes = problems[0].classes
        if len(classes) < 2:
            raise UserError(f"all training samples have the class {classes[0]}; check --label-column")
        encoded = [encode(dataset, problem) for problem in problems]
        sizes = {"train": len(dataset.train), "validation": len(dataset.validation), "test": len(dataset.test)}
        session.line(
            f"{', '.join(f'{count} {split}' for split, count in sizes.items())} samples, "
            f"{len(classes)} classes, on {session.where}"
        )
        if dataset.repeated:
            session.line(f"{dataset.repeated} training samples were left out: they are in the other splits as well")
        session.expect((len(names) + baseline) * settings.seeds * steps_of(encoded[0], settings))

        def row(number: int, random: bool = False) -> Row:
            name = "random weights" if random else names[number]
            make = partial(models[number].model, problems[number], random)
            return _fine_tuned(name, make, problems[number], encoded[number], settings, session)

        trained = row(0)
        random = {"random": row(0, random=True)} if baseline else {}
        beside = {name: row(number) for number, name in enumerate(against, start=1)}
    return session.finish(
        Report(
            checkpoint=checkpoint,
            settings=settings.model_dump(mode="json"),
            samples=sizes,
            metric=kind.metric,
            over="seeds",
            trained=trained,
            against=beside,
            **random,
        )
    )


def _fine_tuned(
    name: str, make: Callable[[], nn.Module], problem: Problem, samples: Samples, settings: Settings, session: Session
) -> Row:
    """Fine-tune a new copy of a model with each seed."""
    scores: list[float] = []
    seconds = 0.0
    for number in range(1, settings.seeds + 1):
        title = f"{name}, seed {number} of {settings.seeds}"
        started = time.monotonic()
        seed = seed_of("evaluation", number)
        with seeded(seed):
            on_step = partial(session.step, title, settings.epochs)
            model = make().to(session.device)
            scores.append(fine_tune(model, problem, samples, settings, seed, on_step, session.half))
        seconds += (took := time.monotonic() - started)
        session.line(f"{title}: {problem.metric} {shown(scores[-1], problem.metric)} % after {took:.0f} s")
    return Row.of(scores, seconds=round(seconds, 1))


def encode(dataset: Dataset, problem: Problem) -> Samples:
    """All examples as tokens; raises UserError if the model's tokenizer has no token to fill up a batch with."""
    if problem.tokenizer.pad_token_id is None:
        raise UserError(
            f"the tokenizer in {problem.tokenizer.name_or_path} has no padding token; give it one (pad_token) and save "
            "it again"
        )
    train, validation, test = (
        [problem.encode(example) for example in split] for split in (dataset.train, dataset.validation, dataset.test)
    )
    return Samples(train, validation, test, pad=problem.tokenizer.pad_token_id)


def steps_of(samples: Samples, settings: Settings) -> int:
    """Optimizer steps of one fine-tuning."""
    return settings.epochs * math.ceil(len(samples.train) / settings.batch)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Inside, torch draws from this seed; the random state outside is left alone."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def fine_tune(
    model: nn.Module,
    problem: Problem,
    samples: Samples,
    settings: Settings,
    seed: int,
    on_step: OnStep,
    half: torch.dtype | None = None,
) -> float:
    """Train the model, which is on its device, and return its score on the test split.

    If there is a validation split, that is the score of the weights after the epoch that does best on it, else of the
    weights at the end: the test split chooses nothing. Raises UserError if the loss is not finite.

    :param seed: decides the order of the samples; dropout draws from torch's random state (see `seeded`)
    :param half: what autocast computes with; with float16 the loss is scaled
    """
    device = next(model.parameters()).device
    total = steps_of(samples, settings)
    schedule = OptimizerConfig(learning_rate=settings.learning_rate, warmup_steps=total // 10, total_steps=total)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": schedule.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=schedule.betas,
        eps=schedule.epsilon,
    )
    scaler = torch.amp.GradScaler(device.type, enabled=half is torch.float16)
    order = np.random.default_rng(seed_of(seed, "order"))
    best, best_weights = -1.0, None
    step = 0
    for epoch in range(1, settings.epochs + 1):
        model.train()
        for batch in _batches(samples.train, settings.batch, order):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(schedule, step)
            loss = _forward(model, batch, samples.pad, half).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), schedule.max_grad_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            step += 1
            if not math.isfinite(value := loss.item()):
                raise UserError("fine-tuning diverged: the loss is not finite; lower --learning-rate")
            on_step(epoch, value)
        if samples.validation:
            score = _score(model, problem, samples.validation, samples.pad, settings.batch, half)
            if score > best:
                best, best_weights = score, copy.deepcopy(model.state_dict())
    if best_weights is not None:
        model.load_state_dict(best_weights)
    return _score(model, problem, samples.test, samples.pad, settings.batch, half)


def _score(
    model: nn.Module, problem: Problem, samples: Sequence[Sample], pad: int, batch_size: int, half: torch.dtype | None
) -> float:
    model.eval()
    by_length = sorted(samples, key=lambda sample: len(sample.input_ids))
    size = _SCORING * batch_size
    predicted = []
    with torch.inference_mode():
        for start in range(0, len(by_length), size):
            batch = by_length[start : start + size]
            classes = _forward(model, batch, pad, half).logits.argmax(-1).reshape(len(batch), -1).tolist()
            predicted += [problem.decode(sample, row) for sample, row in zip(batch, classes, strict=True)]
    return problem.score([sample.example.label for sample in by_length], predicted)


def _batches(samples: Sequence[Sample], size: int, order: np.random.Generator) -> list[list[Sample]]:
    """All samples once, in a random order, yet each batch of similar lengths."""
    shuffled = order.permutation(len(samples))
    batches = []
    for start in range(0, len(shuffled), _POOL * size):
        pool = [samples[index] for index in shuffled[start : start + _POOL * size]]
        pool.sort(key=lambda sample: len(sample.input_ids))
        batches += [pool[first : first + size] for first in range(0, len(pool), size)]
    return [batches[index] for index in order.permutation(len(batches))]


def _forward(model: nn.Module, batch: Sequence[Sample], pad: int, half: torch.dtype | None) -> Any:
    return forward(model, [sample.input_ids for sample in batch], pad, half, [sample.labels for sample in batch])
