"""What a view shows of a session at one moment: the same in a notebook and a terminal, in training and serving."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dedloc_kit.display.human import duration

REFRESH_SECONDS = 0.5
CANNOT = "This machine cannot take part now."
"""A view's headline in the phase `failed`, above the reason."""


class Phase(StrEnum):
    """Where a session is between its start and its end."""

    STARTING = "starting"
    WORKING = "working"
    WAITING = "waiting"
    RESTARTING = "restarting"
    PAUSED = "paused"
    LEAVING = "leaving"
    LEFT = "left"
    """The volunteer wished it."""
    FINISHED = "finished"
    """The run is over."""
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing runs any more, for good."""
        return self in (Phase.LEFT, Phase.FINISHED, Phase.FAILED)


@dataclass(frozen=True)
class LossPoint:
    """The training loss of one global step, and how many of its samples were mine."""

    step: int
    loss: float
    mine: int


@dataclass(frozen=True)
class Progress:
    """How far something is that takes its time."""

    text: str
    fraction: float | None = None
    """0 to 1; None if nobody can tell."""
    mine: float | None = None
    """This machine's part of `fraction`; None of what it does alone."""
    remaining: float | None = None
    """Seconds; None if nobody can tell."""

    @property
    def left(self) -> str:
        """That in words; empty also for the last moment."""
        return f"about {duration(self.remaining)} left" if self.remaining is not None and self.remaining >= 1 else ""


@dataclass(frozen=True)
class Snapshot:
    """Everything a view shows. Texts may hold what others wrote: a view escapes them."""

    phase: Phase
    text: str
    """One sentence: what happens now and what comes next. In the phase `failed`: why, and what to do."""
    facts: tuple[tuple[str, str], ...] = ()
    """Labels and values, in order."""
    progress: Progress | None = None
    """Of whatever is waited for."""
    losses: tuple[LossPoint, ...] | None = None
    """In the order of the steps, some hundreds at most; None where there is no curve."""
    warnings: tuple[str, ...] = ()
    """With what to do, the newest last; few."""
    title: str = ""
    """The run's name."""
    about: str = ""
    """What the run is and for whom, as the organizer wrote it."""
    notes: tuple[tuple[str, str], ...] = ()
    """Labels and sentences: the organizer's announcement, the newest step, the thanks."""
    links: tuple[tuple[str, str], ...] = ()
    """Labels and addresses."""
    details: str = ""
    """For support: versions, machine, the last lines of the log."""


class Controls(Protocol):
    """What a view's buttons do; each returns at once."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def leave(self) -> None: ...


class Watched(Controls, Protocol):
    """What goes on in the background, until `ended` is set."""

    @property
    def ended(self) -> threading.Event: ...

    def snapshot(self) -> Snapshot: ...


def follow(session: Watched, show: Callable[[Snapshot], object]) -> None:
    """Show a session until it has ended."""
    while not session.ended.wait(REFRESH_SECONDS):
        show(session.snapshot())
    show(session.snapshot())
