"""Folders that are there as a whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dedloc_kit.errors import UserError


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` to fill; it gets its name only once the block ends without an error.

    Raises UserError if `folder` exists, before or by then, and is not empty: nothing is ever overwritten.
    """
    taken = UserError(f"{folder} exists already; remove it or choose another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise taken
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp keeps everyone else out
        try:
            os.replace(temporary, folder)
        except OSError:
            raise taken from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
