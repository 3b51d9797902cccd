"""What the ledger says, for a page that asks often and must outlive whatever happens to the file."""

import itertools
import logging
import sqlite3
import statistics
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from dedloc_kit.errors import UserError
from dedloc_kit.ledger import Ledger, Person, SuiteScore, UnreadyLedger
from dedloc_kit.records.steps import GlobalStep

PACE_STEPS = 20
"""The usual time of a global step is that of so many."""
MAX_SUITES = 20
"""That are shown."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Recorded:
    """The ledger as far as it can be read; any thread may ask."""

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        self._path = path
        self._ledger: Ledger | None = None
        self._opening = threading.Lock()
        self._counting = threading.Lock()
        self._counted: tuple[int, int] | None = None
        self._opened = 0
        self._people: list[Person] = []
        self._recent: list[GlobalStep] = []
        self._summary: dict[str, Any] = _NOTHING

    def read(self, ask: Callable[[Ledger], T]) -> T | None:
        """The answer to a question; none if there is no ledger yet or it cannot be read."""
        ledger = self._open()
        if ledger is None:
            return None
        try:
            return ask(ledger)
        except sqlite3.Error as error:
            self._report(f"the ledger cannot be read ({error})")
            return None

    def version(self) -> tuple[int, int] | None:
        """Something else than before once the coordinator has written something; none without a ledger."""
        written = self.read(Ledger.version)
        return None if written is None else (self._opened, written)

    def people(self) -> list[Person]:
        """Everyone who gave samples, most samples first."""
        self._count()
        return self._people

    def summary(self) -> dict[str, Any]:
        """The part of the state that was recorded."""
        self._count()
        return self._summary

    def recent(self) -> list[GlobalStep]:
        """The last global steps, oldest first."""
        self._count()
        return self._recent

    def close(self) -> None:
        with self._opening:
            if self._ledger is not None:
                self._ledger.close()
                self._ledger = None

    def _count(self) -> None:
        """Add up anew if something was written."""
        with self._counting:
            version = self.version()
            if version is None or version != self._counted:
                self._people = self.read(Ledger.people) or []
                self._recent = self.read(lambda ledger: ledger.steps(max(0, ledger.last_step() - PACE_STEPS))) or []
                self._summary = self.read(lambda ledger: _summed_up(ledger, self._people, self._recent)) or _NOTHING
                self._counted = version

    def _open(self) -> Ledger | None:
        with self._opening:
            if self._ledger is not None and self._ledger.replaced:  # a start has put its copy there
                self._ledger.close()
                self._ledger = None
            if self._ledger is None and self._path.exists():
                try:
                    self._ledger = Ledger(self._path, read_only=True)
                    self._opened += 1
                    self.problem = None
                except UnreadyLedger:
                    pass
                except UserError as error:
                    self._report(str(error))
            return self._ledger

    def _report(self, text: str) -> None:
        """Tell the organizer once, with the path; viewers learn only that something is wrong."""
        if self.problem is None:
            _log.warning("%s", text)
        self.problem = "the ledger cannot be read"


_NOTHING: dict[str, Any] = {
    "step": 0,
    "samples_total": 0,
    "loss": None,
    "evaluation": None,
    "start": None,
    "suites": [],
    "seconds_per_step": None,
    "last_step_time": None,
    "contributor_count": 0,
    "device_seconds": 0.0,
}


def _summed_up(ledger: Ledger, people: list[Person], recent: list[GlobalStep]) -> dict[str, Any]:
    ends = ledger.first_and_last_evaluation()
    return {
        "step": ledger.last_step(),
        "samples_total": ledger.samples_total(),
        "loss": next((step.loss for step in reversed(recent) if step.loss is not None), None),
        "evaluation": {"first": asdict(ends[0]), "last": asdict(ends[1])} if ends else None,
        "start": _start(ledger),
        "suites": _suites(ledger.suites()),
        "seconds_per_step": _pace(recent),
        "last_step_time": recent[-1].time if recent else None,
        "contributor_count": len(people),
        "device_seconds": ledger.seconds_total(),
    }


def _start(ledger: Ledger) -> dict[str, Any] | None:
    start = ledger.start()
    if start is None:
        return None
    return {"model": start.model, "loss": start.loss, "better_since": ledger.below_since(start.loss)}


def _suites(scores: list[SuiteScore]) -> list[dict[str, Any]]:
    """Of each suite the first and the last score of the run's own model, and those of others."""
    found = []
    for metric, group in itertools.groupby(scores, key=lambda score: score.metric):
        each = list(group)
        own = [score for score in each if not score.model]
        ends = {"first": asdict(own[0]), "last": asdict(own[-1])} if own else {"first": None, "last": None}
        others = [asdict(score) for score in each if score.model]
        found.append({"metric": metric, "questions": each[-1].questions, **ends, "references": others})
    return found[:MAX_SUITES]


def _pace(steps: list[GlobalStep]) -> float | None:
    """The usual time from one global step to the next; a median, so that a pause does not count."""
    gaps = [later.time - earlier.time for earlier, later in itertools.pairwise(steps)]
    return statistics.median(gaps) if gaps else None
