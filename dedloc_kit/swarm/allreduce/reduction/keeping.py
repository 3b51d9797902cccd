"""Where a peer keeps what travels, as it came: in its memory, or, if it only lends its line, on its disk."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

Kept = Callable[[], bytes]
"""Gives it back."""
Keep = Callable[[bytes], Kept]
"""Takes anything; raises DiskFailed."""


class DiskFailed(Exception):
    """This peer's own disk takes or gives nothing more."""


def in_memory(content: bytes) -> Kept:
    return lambda: content


class Holding(NamedTuple):
    """What a peer holds of a round."""

    own: Tensor
    """Its vector, float32 [size] on the CPU, which is only read, and not at all if it brings no samples."""
    average: Tensor | None
    """Of the same size, takes the average; none if this peer has no use for its values. After a round that failed, late
    members may still write to it."""
    keep: Keep = in_memory
    """Takes what members send to it."""


class OnDisk:
    """In one file without a name, which goes with the last who may want anything of it.

    How much comes there its user bounds, as it would in memory. What was written lately the system gives back from its
    cache, of which it lets go as soon as anybody needs the memory.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - until nobody wants it
        except OSError as error:
            raise DiskFailed(f"{folder} cannot be written ({error.strerror})") from None
        self._end = 0

    def __call__(self, content: bytes) -> Kept:
        begin = self._end
        try:
            while self._end < begin + len(content):
                self._end += os.pwrite(self._file.fileno(), content[self._end - begin :], self._end)
        except OSError as error:
            self._end = begin
            raise DiskFailed(f"the disk takes nothing more ({error.strerror})") from None
        return partial(self._read, begin, self._end - begin)

    def _read(self, begin: int, size: int) -> bytes:
        try:
            content = os.pread(self._file.fileno(), size, begin)
        except OSError as error:
            raise DiskFailed(f"the disk gives nothing back ({error.strerror})") from None
        if len(content) != size:
            raise DiskFailed("the disk gives less back than was written")
        return content
