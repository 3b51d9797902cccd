"""The result of an evaluation for people and as a file."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from dedloc_kit.errors import UserError


def percent(score: float | None) -> str:
    """A score from 0 to 1 in percent, to two digits."""
    return "-" if score is None else f"{100 * score:.2f}"


def spread(scores: Sequence[float]) -> float | None:
    """The sample standard deviation; none for a single score."""
    return statistics.stdev(scores) if len(scores) > 1 else None


def check_report(path: Path | None) -> None:
    """Raises UserError if there is no folder for the file: that is better known before the work."""
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"the folder of {path} does not exist; make it first, or name another file")


def write_report(path: Path, text: str) -> None:
    """Raises UserError if the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); the scores are in the table above") from None
