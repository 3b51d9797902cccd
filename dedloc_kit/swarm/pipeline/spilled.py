"""Contents of calls in a file instead of in memory."""

import shutil
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

from dedloc_kit.machine.hardware import MIN_DISK_BYTES
from dedloc_kit.swarm.pipeline.protocol import Content
from dedloc_kit.swarm.remote.tensors import Packed, TensorHead


class OnDisk(NamedTuple):
    """Where a content is, and how long each part of it."""

    at: int
    batch: int
    tensors: tuple[tuple[TensorHead, int] | None, ...]
    size: int


class Spill:
    """One file without a name, which is gone with this process.

    :param folder: on the disk that is to have it
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._end = self._contents = 0

    def write(self, content: Content) -> OnDisk:
        """Raises OSError if the disk has no room for it, beside what others need there."""
        if shutil.disk_usage(self._folder).free < MIN_DISK_BYTES + content.size:
            raise OSError(f"the disk of {self._folder} is nearly full")
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (as long as this)
        self._file.seek(self._end)
        self._file.write(content.batch)
        for tensor in _tensors(content):
            self._file.write(b"" if tensor is None else tensor.content)
        self._file.flush()
        tensors = tuple(None if each is None else (each.head, len(each.content)) for each in _tensors(content))
        written = OnDisk(self._end, len(content.batch), tensors, content.size)
        self._end += content.size
        self._contents += 1
        return written

    def read(self, written: OnDisk) -> Content:
        """Raises OSError."""
        assert self._file is not None
        self._file.seek(written.at)
        read = memoryview(bytearray(self._file.read(written.size)))
        if len(read) != written.size:
            raise OSError("what was kept on the disk is there no more")
        at, tensors = written.batch, list[Packed | None]()
        for head, length in (each or (None, 0) for each in written.tensors):
            tensors.append(None if head is None else Packed(head, read[at : at + length]))
            at += length
        return Content(bytes(read[: written.batch]), *tensors)

    def forget(self) -> None:
        """One of the contents; with the last one its room is free again."""
        self._contents -= 1
        if not self._contents and self._file is not None:
            self._file.truncate(0)
            self._end = 0

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _tensors(content: Content) -> tuple[Packed | None, Packed | None]:
    return content.hidden, content.gradient
