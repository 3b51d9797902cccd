"""At a start, a ledger whose file was lost, cut off or put back from earlier is taken from its copy."""

import os
import sqlite3
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.ledger.files import NOTHING, Damaged, Newest, check, newest, set_aside, those_aside, write_second
from dedloc_kit.ledger.ledger import Ledger


def opened(path: Path, copy: Path, answers: int = 0) -> tuple[Ledger, str]:
    """Open the ledger, or write it anew from a file that goes further; returns as well what was lost, in words.

    That is the copy, or a file set aside as `*.damaged` earlier which turns out to be whole and to contain the history
    of the ledger. What lies in the ledger's place is set aside in turn. A copy that cannot be read counts as nothing.
    Raises UserError as `Ledger` does, and if the disk fails; then nothing has changed.

    :param answers: see `Ledger`
    """
    fresh, reading = path.with_name(f".{path.name}.tmp"), path
    try:
        there, source, copy_counts = _newest(path), None, True
        best = there or NOTHING
        for reading in (copy, *those_aside(path)):
            is_copy = reading == copy
            try:
                found = newest(reading, finished=is_copy)
                if found.step > best.step:
                    check(reading, NOTHING if is_copy else best, finished=is_copy)
                    best, source = found, reading
            except (OSError, sqlite3.OperationalError, Damaged) as error:
                if there in (None, NOTHING) and not isinstance(error, Damaged):
                    raise  # what cannot be read now may be all that is left
                copy_counts = copy_counts and not is_copy
        if source is not None:
            reading = source
            write_second(source, fresh, finished=source == copy)
            set_aside(path)
            os.replace(fresh, path)
        ledger = Ledger(path, answers=answers)
        if not copy_counts:
            set_aside(copy)  # a new one is about to take its place
    except (OSError, sqlite3.Error, Damaged) as error:
        raise UserError(
            f"{reading}: the ledger cannot be read, or not be written anew from there ({error}); free disk space, and "
            "check the disk and the permissions"
        ) from None
    if source is None:
        return ledger, ""
    return ledger, f"the ledger ({'its copy' if source == copy else source.name} goes to step {best.step})"


def _newest(path: Path) -> Newest | None:
    """As `newest`, none if the file is damaged anywhere."""
    try:
        found = newest(path)
        if found != NOTHING:
            check(path)
        return found
    except Damaged:
        return None
