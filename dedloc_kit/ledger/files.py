"""The files of a ledger: how far one goes, a second one with the same content, and one that is moved out of the way."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from dedloc_kit.ledger.schema import check_version

KEPT_DAMAGED = 8
"""Files of one ledger that are moved out of the way; after that the newest takes the place of the one before it."""
_SUFFIXES = ("", "-wal", "-shm")


class Damaged(Exception):
    """A file holds what no ledger does, unlike one that cannot be read now because the disk fails."""


class Newest(NamedTuple):
    """The newest global step in a file, and the all-reduce that led to it; 0 and empty if it holds none."""

    step: int = 0
    round: str = ""


NOTHING = Newest()


def newest(path: Path, *, finished: bool = False) -> Newest:
    """Read how far a file goes; one that is missing or empty holds nothing.

    Raises Damaged, OSError or sqlite3.OperationalError if the disk fails, UserError for a ledger of another version.

    :param finished: nobody writes to it and nothing of it is in a log, so it can be read on a full disk too
    """
    if not _size_of(path):
        return NOTHING
    with _reading(path, finished) as connection:
        check_version(connection, path)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'steps'").fetchone() is None:
            return NOTHING
        row = connection.execute("SELECT step, round FROM steps ORDER BY step DESC LIMIT 1").fetchone()
        return NOTHING if row is None else Newest(*row)


def check(path: Path, known: Newest = NOTHING, *, finished: bool = False) -> None:
    """Raise Damaged unless all of a file can be read and its history contains what is known; else as `newest`."""
    with _reading(path, finished) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise Damaged(found.splitlines()[-1])
        query = "SELECT 1 FROM steps WHERE step = ? AND round = ?"
        if known != NOTHING and connection.execute(query, known).fetchone() is None:
            raise Damaged("its history is another one")


def write_second(path: Path, fresh: Path, *, finished: bool = False) -> None:
    """Write a new file with the same content; errors and `finished` as in `newest`."""
    with _reading(path, finished) as connection:
        back_up(connection, fresh)


def back_up(connection: sqlite3.Connection, fresh: Path) -> None:
    """Write all that a connection sees to a new file; errors as in `newest`."""
    fresh.unlink(missing_ok=True)
    with _naming_damage(), closing(sqlite3.connect(fresh)) as target:
        connection.backup(target)


def set_aside(path: Path) -> None:
    """Rename a ledger's files to `*.damaged`, or `*.damaged.1` and so on; nothing is removed. Raises OSError."""
    lying = [suffix for suffix in _SUFFIXES if _beside(path, suffix).exists()]
    free = (name for name in _names(path) if not any(_beside(name, suffix).exists() for suffix in _SUFFIXES))
    *_, last = _names(path)
    aside = next(free, last)
    if lying:
        for suffix in _SUFFIXES:  # a log beside a file that it does not belong to would be applied to it
            _beside(aside, suffix).unlink(missing_ok=True)
    for suffix in lying:
        os.replace(_beside(path, suffix), _beside(aside, suffix))


def those_aside(path: Path) -> list[Path]:
    """The files of this ledger that were set aside and are still there."""
    return [name for name in _names(path) if name.exists()]


def _names(path: Path) -> Iterator[Path]:
    yield from (_beside(path, f".damaged{f'.{number}' if number else ''}") for number in range(KEPT_DAMAGED))


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


@contextmanager
def _reading(path: Path, finished: bool) -> Iterator[sqlite3.Connection]:
    uri = f"file:{quote(str(path.absolute()))}?{'mode=ro&immutable=1' if finished else 'mode=rw'}"
    with _naming_damage(), closing(sqlite3.connect(uri, uri=True, timeout=30)) as connection:
        yield connection


@contextmanager
def _naming_damage() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise Damaged(str(error)) from None


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
