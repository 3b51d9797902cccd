"""The terminal's view of a run: one line per thing that happened, and a bar for the global batch."""

import time
from collections.abc import Callable

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.display.human import count
from dedloc_kit.events import (
    Announced,
    AnyEvent,
    Evaluated,
    Hosted,
    Joined,
    Left,
    Loading,
    Peers,
    Pushed,
    PushFailed,
    State,
    StepDone,
    Warned,
)
from dedloc_kit.records.evaluation import NO_SHARES

LOADING_SECONDS = 10.0
"""Between two lines about a download, at most."""


class RunDisplay(BarDisplay):
    """Shows the events of one worker; whatever comes from others is escaped.

    Why a worker failed is not shown here: whoever started it says that, once, at the end.
    """

    def __init__(self, global_batch: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            TextColumn("  next step"), BarColumn(), MofNCompleteColumn(), TextColumn("samples  {task.fields[note]}")
        )
        self._global_batch = global_batch
        self._loaded_quarters, self._clock, self._loading_told = 0, clock, clock()
        self._task = self._bar.add_task("batch", total=global_batch, note="")

    def show(self, event: AnyEvent, who: str = "") -> None:
        """Show an event; `who` names the worker where there are several."""
        prefix = f"{who}: " if who else ""
        match event:
            case State(text=text):
                self.line(f"{prefix}{text}", "dim")
            case Loading(received_bytes=received, total_bytes=total):
                quarter, now = 4 * received // max(1, total), self._clock()
                if quarter > self._loaded_quarters or now - self._loading_told >= LOADING_SECONDS:
                    self.line(f"{prefix}the training state arrives: {event.text}", "dim")
                    self._loading_told = now
                self._loaded_quarters = quarter
            case Hosted(kept=kept, copies=copies):
                self.line(f"{prefix}holding {count(kept, 'expert')}, standing in for {copies} more", "dim")
            case Joined():
                self.line(f"{prefix}joined {event.run_id} at step {event.step} with {event.device}")
            case StepDone(step=step):
                loss = "" if step.loss is None else f"  loss {step.loss:.4f}"
                givers = count(len(event.contributions), "volunteer")
                self.line(f"{prefix}step {step.step}{loss}  {count(step.samples, 'sample')} from {givers}")
                self._fill(0, "")
            case Evaluated():
                metrics = "".join(f", {name} {_measure(name, value)}" for name, value in event.metrics.items())
                self.line(f"{prefix}held-out loss {event.loss:.4f}{metrics} at step {event.step}", "green")
            case Pushed():
                self.line(f"{prefix}step {event.step} is on the Hub: {event.url}", "green")
            case Peers(peers=peers):
                volunteers = [peer for peer in peers if not peer.follower]
                lines = len(peers) - len(volunteers)
                note = count(len(volunteers), "volunteer") + (f", {count(lines, 'lent line')}" if lines else "")
                self._fill(sum(peer.samples for peer in volunteers), note)
            case Announced(text=text):
                if text:
                    self.line(f"{prefix}the organizer: {text}", "bold")
            case Warned(text=text) | PushFailed(text=text):
                self.line(f"{prefix}{text}", "yellow")
            case Left():
                given = f", {event.session_samples} samples given" if event.session_samples else ""
                self.line(f"{prefix}left at step {event.step}{given}", "dim")

    def _fill(self, samples: int, note: str) -> None:
        self._bar.update(self._task, completed=min(samples, self._global_batch), note=note)


def _measure(name: str, value: float) -> str:
    return f"{value:,.2f}" if name in NO_SHARES else f"{value:.1%}"
