"""An LRU cache of open files, so that consecutive stretches fetch nothing twice."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

MAX_OPEN = 8
"""Files that are kept."""
MAX_HELD = 2**29
"""Bytes of files that are kept in memory, unless one file has more."""
_MAX_METADATA = 64

Value = TypeVar("Value")


class Rows(Protocol):
    """Reads the rows of a file."""

    at: int
    """What comes next without anything being read twice: a row, or a place in the file."""

    @property
    def held(self) -> int:
        """Bytes in memory."""
        ...

    def close(self) -> None: ...


class OpenFiles:
    """The cache of one reader; not thread-safe. What was used last comes last."""

    def __init__(self) -> None:
        self._rows: list[tuple[Hashable, Rows]] = []
        self._metadata: dict[str, Any] = {}

    def take(self, key: Hashable, at: int) -> Rows | None:
        """A reader of that file that would go on there; it is given back with `put`."""
        for number, (kept, rows) in enumerate(self._rows):
            if kept == key and rows.at == at:
                del self._rows[number]
                return rows
        return None

    def put(self, key: Hashable, rows: Rows) -> None:
        """Keep a reader for what follows; those that were not used for long are closed."""
        self._rows.append((key, rows))
        while len(self._rows) > 1 and (
            len(self._rows) > MAX_OPEN or sum(each.held for _, each in self._rows) > MAX_HELD
        ):
            self._rows.pop(0)[1].close()

    def metadata(self, path: str, make: Callable[[], Value]) -> Value:
        """What a file says of itself; so it is read once."""
        if path not in self._metadata:
            if len(self._metadata) >= _MAX_METADATA:
                del self._metadata[next(iter(self._metadata))]
            self._metadata[path] = make()
        found: Value = self._metadata[path]
        return found

    def close(self) -> None:
        """Let go of everything."""
        for _, rows in self._rows:
            with suppress(OSError):
                rows.close()
        self._rows.clear()
