"""What `dedloc evaluate --json` has written into the run's folder, for the model card."""

import logging
from html import escape
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from dedloc_kit.display.human import visible
from dedloc_kit.run.section import public_name

REPORTS = "evaluation*.json"
"""The names of files in the run's folder that are taken for such results."""

_log = logging.getLogger(__name__)


class Scores(BaseModel):
    """Of one model."""

    mean: float = Field(allow_inf_nan=False)
    spread: float | None = Field(default=None, allow_inf_nan=False)


class Report(BaseModel):
    """The part of such a file that the card shows; of a model that makes features there is none."""

    checkpoint: str
    metric: str
    samples: dict[str, int]
    trained: Scores
    random: Scores | None = None
    against: dict[str, Scores] = {}


def reports(folder: Path) -> list[Report]:
    """The results in a run's folder; a file that holds none is left out, and the log says so."""
    found = []
    for path in sorted(folder.glob(REPORTS)):
        try:
            found.append(Report.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError) as error:
            _log.warning("%s is no result of dedloc evaluate, so the model card leaves it out (%s)", path, error)
    return found


def table(report: Report) -> str:
    """As HTML: inside of it nothing that a name may hold means anything to Markdown."""
    bits = "bits" in report.metric
    heading = report.metric if bits or "%" in report.metric else f"{report.metric} in %"
    rows = [("this model", report.trained)]
    rows += [("random weights", report.random)] if report.random else []
    rows += [(public_name(name), scores) for name, scores in report.against.items()]
    cells = "\n".join(
        f"<tr><td>{escape(visible(name))}</td><td>{_shown(scores.mean, bits)}</td>"
        f"<td>{_shown(scores.spread, bits)}</td></tr>"
        for name, scores in rows
    )
    counts = ", ".join(f"{count:,} {visible(what)}" for what, count in report.samples.items())
    return (
        f"<table>\n<tr><th>{escape(visible(heading))}</th><th>mean</th><th>spread</th></tr>\n{cells}\n</table>\n\n"
        f"{escape(visible(Path(report.checkpoint).name))}, on {escape(counts)}."
    )


def _shown(score: float | None, bits: bool) -> str:
    if score is None:
        return "-"
    return f"{score:.4f}" if bits else f"{100 * score:.2f}"
