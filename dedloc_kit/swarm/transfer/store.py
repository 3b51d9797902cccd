"""Content on disk, each in a file that is named by its SHA-256: what has come from others goes on to more of them."""

import errno
import hashlib
import mmap
import os
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dedloc_kit.errors import UserError

_COPIED = 2**20
"""Bytes at once."""
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class FilePart:
    """Where in a file some content lies."""

    path: Path
    begin: int
    size: int
    """Bytes."""

    def read(self, begin: int, end: int) -> bytes:
        """These bytes of the content, without those beyond its end; raises OSError if the file is shorter now."""
        end = min(end, self.size)
        # Not mapped into memory: whoever shortens the file would end this process.
        with self.path.open("rb") as file:
            file.seek(self.begin + begin)
            content = file.read(max(0, end - begin))
        if len(content) < end - begin:
            raise OSError(f"{self.path} is shorter than it was")
        return content


class Store:
    """What was fetched from others.

    :param folder: of one process alone

    What cannot be written raises UserError.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with _written(folder, 0):
            folder.mkdir(parents=True, exist_ok=True)
            for unfinished in folder.glob(f"{_UNFINISHED}*"):
                unfinished.unlink(missing_ok=True)

    def find(self, digest: str) -> FilePart | None:
        """Where the content with this hash lies; it may have been damaged since it was written."""
        path = self.folder / digest
        return FilePart(path, 0, path.stat().st_size) if path.is_file() else None

    def holds(self, digest: str) -> bool:
        """Is it there and undamaged? All of it is read; what is damaged is removed."""
        path = self.folder / digest
        try:
            with path.open("rb") as file:
                right = hashlib.file_digest(file, "sha256").hexdigest() == digest
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror})") from None
        if not right:
            path.unlink(missing_ok=True)
        return right

    def put(self, content: bytes) -> str:
        """Keep something small; returns its hash."""
        digest = hashlib.sha256(content).hexdigest()
        if content:
            part = self.begin(digest, len(content))
            part.buffer[:] = content
            part.keep()
        else:
            with _written(self.folder, 0):
                (self.folder / digest).touch()
        return digest

    def copy(self, digest: str, part: FilePart) -> None:
        """Keep what lies elsewhere, if that is what it should be."""
        if self.find(digest) is not None:
            return
        if not part.size:
            self.put(b"")
            return
        copied = self.begin(digest, part.size)
        for begin in range(0, part.size, _COPIED):
            end = min(begin + _COPIED, part.size)
            copied.buffer[begin:end] = part.read(begin, end)
        if not copied.keep():
            copied.drop()

    def begin(self, digest: str, size: int) -> "Part":
        """Room on the disk for content that is about to come."""
        return Part(self.folder, digest, size)

    def keep_only(self, digests: Collection[str]) -> None:
        """Remove all other content, but not what is on its way."""
        with _written(self.folder, 0):
            for path in self.folder.iterdir():
                if path.name not in digests and not path.name.startswith(_UNFINISHED):
                    path.unlink(missing_ok=True)

    def make_room(self, size: int) -> None:
        """Raises UserError unless so many more bytes fit."""
        with _written(self.folder, size):
            status = os.statvfs(self.folder)
            if status.f_bavail * status.f_frsize < size:
                raise OSError(errno.ENOSPC, "")


class Part:
    """Content on its way, in a file under another name until it is complete.

    :ivar buffer: where it goes
    """

    def __init__(self, folder: Path, digest: str, size: int) -> None:
        self._path, self._digest = folder / digest, digest
        with _written(folder, size):
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=folder)
            self._unfinished = Path(name)
            try:
                # The disk's blocks now: writing to memory that has none would end this process on a full disk.
                os.posix_fallocate(descriptor, 0, size)
                self.buffer = memoryview(mmap.mmap(descriptor, size))
            except BaseException:
                self.drop()
                raise
            finally:
                os.close(descriptor)

    def keep(self) -> bool:
        """Give it its name if its hash is right."""
        if hashlib.sha256(self.buffer).hexdigest() != self._digest:
            return False
        with _written(self._path.parent, 0):
            os.replace(self._unfinished, self._path)
        return True

    def drop(self) -> None:
        """It is of no use any more."""
        self._unfinished.unlink(missing_ok=True)


@contextmanager
def _written(folder: Path, size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"the disk of {folder} is full: {size / 1e6:.0f} MB more are needed there; free some space"
            ) from None
        raise UserError(f"{folder} cannot be written ({error.strerror or error})") from None
