"""Paths as people type them."""

import os
from pathlib import Path


def expanded(text: str | Path) -> Path:
    """With the home folder in place of ~; as it stands if nobody has such a home, so that it is told as missing."""
    return Path(os.path.expanduser(text))


def exists(path: Path) -> bool:
    """False as well for what no file can be called: too long, or with a zero in it."""
    return os.path.exists(path)


def is_folder(path: Path) -> bool:
    """As `exists`."""
    return os.path.isdir(path)
