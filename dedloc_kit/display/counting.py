"""How much of something is made, and how fast."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import (
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.display.human import rate

Item = TypeVar("Item")


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{rate(speed)} a second" if speed else "")


class CountDisplay(BarDisplay):
    """Counts things of several names; how many there will be may not be known.

    :param what: they are, such as `documents`
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            TextColumn(what),
            _RateColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            stderr=True,
        )
        self._counts: dict[str, TaskID] = {}

    def each(self, name: str, items: Iterable[Item], total: int | None = None) -> Iterator[Item]:
        """The same, while they are counted."""
        if name not in self._counts:
            self._counts[name] = self._bar.add_task(name, total=total)
        for item in items:
            yield item
            self._bar.advance(self._counts[name])
