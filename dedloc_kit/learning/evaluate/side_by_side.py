"""`dedloc evaluate` without training: what models hold for probable, in one table (of what, `measures` tells)."""

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.evaluate.display import Display
from dedloc_kit.learning.evaluate.likelihood import Query, nats
from dedloc_kit.learning.evaluate.measures import Measure, Pairs, Score, Text
from dedloc_kit.learning.evaluate.pretrained import Kind, Pretrained, as_folder
from dedloc_kit.learning.evaluate.report import check_report, spread, write_report
from dedloc_kit.learning.evaluate.settings import LikelihoodSettings
from dedloc_kit.learning.train.computing.device import describe_device, pick_device, set_threads
from dedloc_kit.run.config import RunConfig

_MEASURES: dict[str, type[Measure]] = {"text": Text, "pairs": Pairs}


@dataclass
class Row:
    """What one model scored."""

    model: str
    kind: Kind
    score: Score
    seconds: float

    @property
    def spread(self) -> float | None:
        return spread(self.score.parts)

    def as_json(self) -> dict[str, Any]:
        score = self.score
        values = {"kind": self.kind, "scores": score.parts, "mean": score.mean, "spread": self.spread}
        per_word = {} if score.per_word is None else {"perplexity per word": score.per_word}
        return {**values, **per_word, "seconds": round(self.seconds, 1)}


def side_by_side(
    checkpoint: str,
    settings: LikelihoodSettings,
    run: RunConfig | None = None,
    against: Sequence[str] = (),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int = 0,
    report: Path | None = None,
) -> list[Row]:
    """Score a model, and beside it others, on the same samples, and show the scores.

    :param run: of a checkpoint that is weights alone; its held-out data is the default for text
    :param report: a JSON file for the result
    Raises UserError for what the person can put right.
    """
    check_report(report)
    where = pick_device(device)
    set_threads(threads)
    with ExitStack() as stack:
        names = [checkpoint, *against]
        folders = [stack.enter_context(as_folder(name, run)) for name in names]
        display = stack.enter_context(Display())
        models = [Pretrained(folder, settings.max_length) for folder in folders]
        measure = _MEASURES[settings.task](settings, run, min(model.max_length for model in models), display)
        if not measure.kinds_compare and len({model.kind for model in models}) > 1:
            kinds = ", ".join(f"{name}: {model.kind or 'none'}" for name, model in zip(names, models, strict=True))
            raise UserError(
                f"text tells nothing between causal and masked models ({kinds}); name models of one kind, or compare "
                "them with --task pairs"
            )
        rows = [_scored(name, model, measure, where, display) for name, model in zip(names, models, strict=True)]
        _show(rows, measure, display)
    if report is not None:
        values = {
            "checkpoint": checkpoint,
            "settings": settings.model_dump(mode="json"),
            "samples": measure.samples,
            "metric": measure.metric(rows[0].kind),
            "trained": rows[0].as_json(),
            "against": {row.model: row.as_json() for row in rows[1:]},
        }
        write_report(report, json.dumps(values, ensure_ascii=False, indent=2) + "\n")
    return rows


def _scored(name: str, pretrained: Pretrained, measure: Measure, where: torch.device, display: Display) -> Row:
    model = pretrained.language_model().to(where)
    assert pretrained.kind is not None
    pad = pretrained.tokenizer.pad_token_id or 0
    started = time.monotonic()

    def ask(queries: Sequence[Query], owners: int) -> list[float]:
        display.expect(len(queries))
        return nats(model, queries, owners, pad, partial(display.advance, name))

    score = measure.score(name, pretrained, ask)
    row = Row(name, pretrained.kind, score, time.monotonic() - started)
    display.line(f"{name}: {measure.shown(score.mean)} on {describe_device(where)} after {row.seconds:.0f} s")
    return row


def _show(rows: list[Row], measure: Measure, display: Display) -> None:
    """The table, and in how many parts of the samples the model is ahead of each other one."""
    ours, *others = rows
    per_word = [] if ours.score.per_word is None else ["perplexity per word"]
    display.table(
        [measure.metric(ours.kind), "mean", "spread", *per_word],
        [
            [
                row.model,
                measure.shown(row.score.mean),
                measure.shown(row.spread),
                *([] if row.score.per_word is None else [f"{row.score.per_word:.4g}"]),
            ]
            for row in rows
        ],
    )
    for row in others:
        ahead = [
            measure.better * (our - their) > 0 for our, their in zip(ours.score.parts, row.score.parts, strict=True)
        ]
        better = "is better than" if measure.better * (ours.score.mean - row.score.mean) > 0 else "is no better than"
        display.line(f"{ours.model} {better} {row.model} (ahead in {sum(ahead)} of {len(ahead)} parts of the samples)")
