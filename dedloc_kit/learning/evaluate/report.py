"""The result of an evaluation of any kind: one form for the terminal, the JSON file and the model card."""

import math
import statistics
from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, computed_field

_BITS = ("bits per byte", "perplexity")
"""Begin the metrics of which less is better, and which are no share of one."""


def shown(score: float | None, metric: str) -> str:
    """Format a score by this metric, or a spread: bits as they are, a share of one in percent."""
    if score is None:
        return "-"
    return f"{score:.4f}" if metric.startswith(_BITS) else f"{100 * score:.2f}"


class Scores(BaseModel):
    """What one model scored by one metric."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    scores: tuple[float, ...] = ()
    """One for each seed or part of the samples."""
    mean: float
    spread: float | None = None
    """The sample standard deviation, of questions the standard error of the mean; none for a single score."""

    @classmethod
    def of(cls, scores: Sequence[float], **fields: Any) -> Self:
        """With the mean and the spread of the scores, and other fields."""
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        return cls(**{"scores": tuple(scores), "mean": statistics.fmean(scores), "spread": spread, **fields})


def _named(name: str, in_file: str) -> Any:
    return Field(default=None, validation_alias=AliasChoices(name, in_file), serialization_alias=in_file)


class Row(Scores):
    """What one model scored, and what else was found of it."""

    kind: Literal["causal", "masked"] | None = None
    per_word: float | None = _named("per_word", "perplexity per word")
    knn: Scores | None = _named("knn", "k-NN accuracy")
    seconds: float = 0.0


class Report(BaseModel):
    """The scores of a checkpoint beside those of random weights and of other models."""

    model_config = ConfigDict(frozen=True)

    checkpoint: str
    settings: dict[str, Any] = {}
    samples: dict[str, int]
    """How many there are, by what they are."""
    metric: str
    over: Literal["seeds", "parts of the samples", "questions"] = "seeds"
    """What each of a row's scores is for; those of questions are too many to be kept."""
    trained: Row
    """The checkpoint."""
    random: Row | None = None
    against: dict[str, Row] = {}

    @property
    def rows(self) -> list[tuple[str, Row]]:
        """All of them by name, the checkpoint first."""
        random = [] if self.random is None else [("random weights", self.random)]
        return [(self.checkpoint, self.trained), *random, *self.against.items()]

    @property
    def heading(self) -> str:
        """The metric and its unit."""
        return self.metric if self._bits or "%" in self.metric else f"{self.metric} in %"

    def shown(self, score: float | None) -> str:
        """Format a score or a spread, in the unit of the heading."""
        return shown(score, self.metric)

    def table(self) -> list[dict[str, str]]:
        """Format each row by column."""
        return [{self.heading: name} | self._cells(row) for name, row in self.rows]

    def comparisons(self) -> list[str]:
        """Compare the checkpoint with each other row, in a line each."""
        lines = []
        sign = -1 if self._bits else 1
        (_, ours), *others = self.rows
        for name, row in others:
            difference = ours.mean - row.mean
            by = f"{difference:+.4f}" if self._bits else f"{100 * difference:+.2f} points"
            ahead = sum(sign * (our - their) > 0 for our, their in zip(ours.scores, row.scores, strict=True))
            better = "better" if sign * difference > 0 else "no better"
            if self.over == "questions":
                within = abs(difference) <= 2 * math.hypot(ours.spread or 0.0, row.spread or 0.0)
                lines.append(f"against {name}: {by}, {'no clear difference' if within else better} ({self.metric})")
                continue
            lines.append(f"against {name}: {by}, {better} (ahead in {ahead} of {len(ours.scores)} {self.over})")
        return lines

    @computed_field  # type: ignore[prop-decorator]
    @property
    def margin(self) -> float | None:
        """How far the checkpoint is above random weights, if these were scored."""
        return None if self.random is None else self.trained.mean - self.random.mean

    @property
    def _bits(self) -> bool:
        return self.metric.startswith(_BITS)

    def _cells(self, row: Row) -> dict[str, str]:
        cells = {"mean": self.shown(row.mean), "spread": self.shown(row.spread)}
        if row.per_word is not None:
            cells["perplexity per word"] = f"{row.per_word:.4g}"
        if row.knn is not None:
            cells["k-NN accuracy"] = self.shown(row.knn.mean)
        if self.over == "seeds":
            cells |= {f"seed {number}": self.shown(score) for number, score in enumerate(row.scores, start=1)}
        return cells


class SuitesReport(BaseModel):
    """The scores by several standard suites."""

    model_config = ConfigDict(frozen=True)

    suites: tuple[Report, ...] = Field(min_length=1)
    """Of the same models."""

    def table(self) -> list[dict[str, str]]:
        """Format a row for each model, with a column for each suite: the mean, and its standard error."""
        names = [name for name, _ in self.suites[0].rows]
        rows = [{"model": name} for name in names]
        for suite in self.suites:
            for cells, (_, row) in zip(rows, suite.rows, strict=True):
                cells[suite.heading] = f"{suite.shown(row.mean)} ± {suite.shown(row.spread)}"
        return rows

    def comparisons(self) -> list[str]:
        """Compare the first model with each other one, in a line for each suite."""
        return [line for suite in self.suites for line in suite.comparisons()]
