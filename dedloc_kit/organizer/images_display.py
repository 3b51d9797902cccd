"""How far the making of picture codes is."""

from collections.abc import Iterator

from rich.progress import (
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from dedloc_kit.display.bar import BarDisplay
from dedloc_kit.learning.data.pictures.codes import Captioned


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
