"""Folders and files that only their owner may read: they hold addresses of people, or what proves who somebody is."""

import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any


def make_private(folder: Path) -> None:
    """Make a folder for its owner alone; one that is there stays as somebody chose it. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def open_private(path: Path, mode: str) -> IO[Any]:
    """Open a file to write it, which only its owner may read, also if it was there before. Raises OSError."""
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=_opener)


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file that only its owner may read. Raises OSError."""
    with open_private(path, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    with suppress(OSError):  # somebody else's file, or a file system without permissions, as a mounted Drive
        os.fchmod(descriptor, 0o600)
    return descriptor
