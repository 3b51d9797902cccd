"""How far the making of picture codes is: a bar on a terminal, a few lines elsewhere."""

import time
from collections.abc import Iterator

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.learning.data.pictures.codes import Captioned

_LINES = 10


class PictureTrainingDisplay(BarDisplay):
    """Of the training of a picture model."""

    def __init__(self, steps: int) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            stderr=True,
        )
        self._steps = steps
        self._start = time.monotonic()
        self._task = self._bar.add_task("training", total=steps, note="", visible=False)

    def trained(self, step: int, loss: float, used: float) -> None:
        """So many steps are done."""
        note = f"step {step} of {self._steps}: loss {loss:.3f}, {used:.0%} of the codes in this batch"
        self._bar.update(self._task, completed=step, note=note, visible=step < self._steps)
        if step % max(1, self._steps // _LINES) == 0 and not self.console.is_terminal:
            self.line(f"{note}, {time.monotonic() - self._start:.0f} s")


class EncodingDisplay(BarDisplay):
    """Of the writing of shards."""

    def __init__(self) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            TextColumn("pictures"),
            TimeElapsedColumn(),
            stderr=True,
        )

    def each(self, split: str, samples: Iterator[Captioned]) -> Iterator[Captioned]:
        task = self._bar.add_task(split, total=None)
        for sample in samples:
            yield sample
            self._bar.advance(task)
