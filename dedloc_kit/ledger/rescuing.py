"""A ledger whose file was lost, cut off or put back from earlier is taken from its copy."""

import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.ledger.ledger import Ledger


def opened(path: Path, copy: Path, answers: int = 0) -> tuple[Ledger, str]:
    """Open the ledger, or write it anew from its copy if that goes further; returns as well what was lost, in words.

    What lies there instead is kept as `*.damaged`. Raises UserError as `Ledger` does.

    :param answers: see `Ledger`
    """
    there, held = _steps(path), _steps(copy)
    if not held or (there is not None and there >= held):
        return Ledger(path, answers=answers), ""
    try:
        for suffix in ("", "-wal", "-shm"):
            lying = path.with_name(path.name + suffix)
            if lying.exists():
                os.replace(lying, path.with_name(f"{path.name}.damaged{suffix}"))
        fresh = path.with_name(f".{path.name}.tmp")
        shutil.copyfile(copy, fresh)
        os.replace(fresh, path)
    except OSError as error:
        raise UserError(f"{path}: the lost ledger cannot be written anew ({error})") from None
    return Ledger(path, answers=answers), f"the ledger (its copy goes to step {held})"


def _steps(path: Path) -> int | None:
    """The newest step in a ledger's file: 0 without one or in an empty one, none in one that is damaged."""
    if not path.exists() or not path.stat().st_size:
        return 0
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone() is None:
                return 0
            return int(connection.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0])
    except sqlite3.OperationalError:  # it cannot be opened, and whoever opens it says why
        return sys.maxsize
    except sqlite3.DatabaseError:
        return None
