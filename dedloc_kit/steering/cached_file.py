"""A file that others change, read again only when they have: asking often costs little."""

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
Version = tuple[int, int, int]


def version(path: Path) -> Version | None:
    """Another one after each change, if files are replaced as a whole; none if there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


class Followed(Generic[T]):
    """What a file says now.

    :param read: reads it, whether it is there or not; what it raises is raised each time, until it can be read again
    """

    def __init__(self, path: Path, read: Callable[[], T]) -> None:
        self._path, self._read = path, read
        self._kept: tuple[Version | None, T] | None = None

    def current(self) -> T:
        """What it says now."""
        now = version(self._path)  # before it is read: what changes meanwhile is seen the next time
        if self._kept is None or self._kept[0] != now:
            self._kept = now, self._read()
        return self._kept[1]
