"""What `dedloc evaluate --json` has said, in a file in the run's folder, for the model card."""

import logging
from html import escape
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dedloc_kit.config.section import public_name
from dedloc_kit.display.human import visible
from dedloc_kit.learning.evaluate.report import Report, SuitesReport

REPORTS = "evaluation*.json"
"""The names of files in the run's folder that are taken for such results."""

_log = logging.getLogger(__name__)
_ANY: TypeAdapter[SuitesReport | Report] = TypeAdapter(SuitesReport | Report)


def reports(folder: Path) -> list[Report]:
    """The results in a run's folder; a file that holds none is left out, and the log says so."""
    found: list[Report] = []
    for path in sorted(folder.glob(REPORTS)):
        try:
            read = _ANY.validate_json(path.read_bytes())
            found += read.suites if isinstance(read, SuitesReport) else [read]
        except (OSError, ValidationError) as error:
            _log.warning("%s is no result of dedloc evaluate, so the model card leaves it out (%s)", path, error)
    return found


def table(report: Report) -> str:
    """As HTML: inside of it nothing that a name may hold means anything to Markdown."""
    (_, ours), *others = report.rows
    cells = "\n".join(
        f"<tr><td>{escape(visible(public_name(name)))}</td><td>{report.shown(row.mean)}</td>"
        f"<td>{report.shown(row.spread)}</td></tr>"
        for name, row in [("this model", ours), *others]
    )
    counts = ", ".join(f"{count:,} {visible(what)}" for what, count in report.samples.items())
    return (
        f"<table>\n<tr><th>{escape(visible(report.heading))}</th><th>mean</th><th>spread</th></tr>\n{cells}\n</table>\n\n"
        f"{escape(visible(Path(report.checkpoint).name))}, on {escape(counts)}."
    )
