"""Files that are far away: each request for a part of one counts, and may find the line broken."""

from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

_BLOCK = 2**12


class FarFiles(LocalFileSystem):
    """The files of a folder, as `far:///NAME`."""

    protocol = "far"
    cachable = True
    folder = Path()
    fetched = 0
    """Bytes of files."""
    _left = -1
    """Requests until the line breaks, once."""

    def begin(self, folder: Path) -> None:
        """Show this folder, over a good line."""
        self.folder, self.fetched, self._left = folder, 0, -1

    def break_after(self, requests: int) -> None:
        """Let the line break once, after so many requests."""
        self._left = requests

    def take(self, name: str, begin: int, end: int) -> bytes:
        """A part of a file."""
        self._left -= 1
        if self._left == -1:
            self._left = -2
            raise ConnectionError("the line is down")
        if self._left < -1:
            self._left = -2
        self.fetched += end - begin
        with (self.folder / Path(name).name).open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        place = self.folder / Path(path).name
        return {"name": path, "size": place.stat().st_size, "type": "file"}

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **how: Any) -> Any:
        return _Far(self, path, mode, block_size=_BLOCK, **how)


class _Far(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        taken: bytes = self.fs.take(self.path, start, end)
        return taken


def far_files(folder: Path) -> FarFiles:
    """The files of a folder, which this process reads as `far:///NAME` from now on."""
    fsspec.register_implementation("far", FarFiles, clobber=True)
    system = FarFiles()
    system.begin(folder)
    return system
