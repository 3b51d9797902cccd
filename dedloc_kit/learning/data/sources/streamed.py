"""Sequential reading of files that cannot be entered in the middle, such as compressed ones."""

from collections.abc import Callable, Iterator
from itertools import islice

from dedloc_kit.learning.data.sources.formats import Row

Share = tuple[int, int, int]
"""From (begin / size) to (end / size) of a file."""


class StreamedRows:
    """The rows of a file. A row belongs to the part of it that had been taken when the row's turn came.

    :param rows: all of them
    :param taken: the bytes of the file that are taken so far
    :param close: ends the reading
    """

    held = 0

    def __init__(self, rows: Iterator[Row], taken: Callable[[], int], close: Callable[[], None]) -> None:
        self._rows, self._taken, self.close = rows, taken, close
        self.number = 0
        """Of the row that was read last, from 1 on."""
        self.at = 0
        """Where the part begins that comes next."""

    def share(self, share: Share, skip: int = 0) -> Iterator[Row]:
        """The rows of a part that does not begin before `at`, but for the first ones."""
        begin, end, size = share
        for _ in self._until(begin):
            pass
        yield from islice(self._until(None if end == size else end), skip, None)
        self.at = end

    def _until(self, end: int | None) -> Iterator[Row]:
        while end is None or self._taken() < end:
            row = next(self._rows, None)
            if row is None:
                return
            self.number += 1
            yield row
