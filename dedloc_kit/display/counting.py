"""How much of something is made."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.progress import MofNCompleteColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from dedloc_kit.display.bar import BarDisplay

Item = TypeVar("Item")


class CountDisplay(BarDisplay):
    """Counts things of several names, of which nobody knows how many there will be.

    :param what: they are, such as `documents`
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            MofNCompleteColumn(),
            TextColumn(what),
            TimeElapsedColumn(),
            stderr=True,
        )
        self._counts: dict[str, TaskID] = {}

    def each(self, name: str, items: Iterable[Item]) -> Iterator[Item]:
        """The same, while they are counted."""
        if name not in self._counts:
            self._counts[name] = self._bar.add_task(name, total=None)
        for item in items:
            yield item
            self._bar.advance(self._counts[name])
