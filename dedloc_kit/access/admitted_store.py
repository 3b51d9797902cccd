"""Whom the organizer has invited and who was let in: two files in the coordinator's folder."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from dedloc_kit.access.codes import MACHINES
from dedloc_kit.config.trust import HubName
from dedloc_kit.errors import UserError
from dedloc_kit.machine.text_files import replace_text
from dedloc_kit.records.record import PeerId, Record, Time
from dedloc_kit.validation import describe

R = TypeVar("R", bound=Record)
BOOK_FILE, ADMITTED_FILE = "access.json", "admitted.json"
_LOCK = ".access.lock"


class Issued(Record):
    """An invitation that the organizer has given to somebody."""

    minted: Time
    expires: Time


class Book(Record):
    """`access.json` in the coordinator's folder: only the command line writes it."""

    invited: dict[HubName, Issued] = Field(default={})
    revoked: dict[HubName, Time] = Field(default={})
    """When somebody's invitation was withdrawn; a later one counts."""


class Admitted(Record):
    """A peer that was let in."""

    name: str
    minted: Time
    """When its code was made; that of its admission for an account on the Hub."""
    until: Time
    machines: int = MACHINES
    """How many this person may bring at the same time."""


class Admissions(Record):
    """`admitted.json` in the coordinator's folder: only the coordinator writes it."""

    peers: dict[PeerId, Admitted] = Field(default={})
    crowded: dict[str, Time] = Field(default={})
    """Who wanted to bring more machines than the invitation is for, and when."""


def read_book(folder: Path) -> Book:
    """Raises UserError if the file is damaged, as the others here do."""
    return _read(folder / BOOK_FILE, Book)


@contextmanager
def changed_book(folder: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """The book's values, to be changed; written at the end."""
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = _read(folder / BOOK_FILE, Book).model_dump()
            yield values
            _write(folder / BOOK_FILE, Book.parse(values))
    except OSError as error:
        raise UserError(f"{folder / BOOK_FILE} cannot be written ({error.strerror}); check its permissions") from None


def read_admissions(folder: Path) -> Admissions:
    """Who was let in."""
    return _read(folder / ADMITTED_FILE, Admissions)


def write_admissions(folder: Path, admissions: Admissions) -> None:
    """Whoever was let in, as a whole."""
    _write(folder / ADMITTED_FILE, admissions)


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return kind()
    except (ValidationError, UnicodeDecodeError) as error:
        why = describe(error, kind) if isinstance(error, ValidationError) else "no UTF-8"
        raise UserError(f"{path} is damaged ({why}); repair it") from None


def _write(path: Path, record: Record) -> None:
    replace_text(path, record.model_dump_json(indent=1))
