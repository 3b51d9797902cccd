"""Fills a new ledger from a copy, in a process of its own that gets so much memory and no more.

A Parquet file of some hundred bytes may unpack to gigabytes, and of its sizes it says what it likes: its pages are
looked at, and for the rest the system's own limit holds. `copying.restore` starts it as
`python -m dedloc_kit.ledger.filling LEDGER COPY`; what is wrong is one line on its standard output.
"""

import json
import os
import resource
import sqlite3
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dedloc_kit.errors import UserError
from dedloc_kit.ledger.schema import VERSION, of_another_version, prepare
from dedloc_kit.ledger.tables import VERSION_KEY, Column, columns_of, table_names
from dedloc_kit.records.contributors import MAX_LEDGER_BYTES
from dedloc_kit.records.evaluation import Evaluation, Picture
from dedloc_kit.records.steps import MAX_LOSS, LeftOut
from dedloc_kit.run.section import PLAIN_TEXT

if TYPE_CHECKING:
    import pyarrow as pa

    from dedloc_kit.learning.data.sources.pages import Parquet

MEMORY = 2**29
"""Bytes for everything that is unpacked."""
_BATCH_ROWS = 1000
_MAX_ROWS = 10**8
_MAX_GROUP_BYTES = 2**28
"""Of what is unpacked at a time, as a file says of itself."""

_MAX_COUNT, _MAX_NUMBER, _MAX_TEXT = 2**53, 1e12, 100_000
_TEXTS = {
    **dict.fromkeys(("peer", "trainer", "host"), "^[0-9A-Za-z]{1,128}$"),
    "session": "^([0-9a-f]{0,64}|earlier)$",
    "round": "^[0-9a-f]{0,64}$",
    "digest": "^[0-9a-f]{64}$",
}
"""What a text may be by its column; any other has no control characters."""


def fill(ledger: Path, copy: Path) -> None:
    """Make a new ledger of a copy, as `copying.restore` does."""
    try:
        if copy.is_file():
            copy = _unzipped(copy, ledger.parent / "copy")
        files = {path.stem: path for path in sorted(copy.glob("*.parquet"))}
        if not files:
            raise UserError(f"there is no copy of a ledger in {copy}")
        with closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
            prepare(connection)
            connection.execute("BEGIN")
            _fill_tables(connection, files)
            connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise UserError(f"{ledger}: the ledger cannot be written ({error}); free disk space") from None


def _unzipped(archive: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(archive) as opened:
            if sum(file.file_size for file in opened.infolist()) > MAX_LEDGER_BYTES:
                raise UserError(f"{archive.name} is too large")
            for file in opened.infolist():
                if Path(file.filename).name == file.filename:
                    opened.extract(file, folder)
    except (
        zipfile.BadZipFile,
        ValueError,
        NotImplementedError,
        RuntimeError,
        MemoryError,
        EOFError,
        zlib.error,
    ) as error:
        raise UserError(f"{archive.name} cannot be read ({error!r:.200})") from None
    return folder


def confine() -> None:
    """Let this process have no more memory and disk than filling a ledger takes, where the system holds it to that."""
    if sys.platform == "linux":
        most = psutil.Process().memory_info().data + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    most = 4 * MAX_LEDGER_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def _fill_tables(connection: sqlite3.Connection, files: Mapping[str, Path]) -> None:
    for path in files.values():
        with _reading(path), _opened(path) as table:
            _check_version(table)
    tables = set(table_names(connection))
    for strange in sorted(files.keys() - tables):
        raise UserError(f"{strange}.parquet is no table of a ledger")
    for missing in sorted(tables - files.keys()):
        raise UserError(f"the copy of the ledger lacks {missing}.parquet")
    for name, path in files.items():
        with _reading(path), _opened(path) as table:
            _fill(connection, name, table)
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise UserError("the copy of the ledger does not fit together; use another one")


def _fill(connection: sqlite3.Connection, name: str, table: "Parquet") -> None:
    columns = {column.name: column for column in columns_of(connection, name)}
    given = table.schema
    missing = [column for column in columns if column not in given.names]
    if missing:
        raise ValueError(f"lacks the column '{missing[0]}'")
    if len(given.names) != len(columns):
        raise ValueError("has columns that no ledger has")
    for field in given:
        if field.type != columns[field.name].type:
            raise ValueError(f"has the column '{field.name}' of another type")
    places = ", ".join("?" for _ in given.names)
    insert = f"INSERT INTO {name} ({', '.join(given.names)}) VALUES ({places})"
    groups = range(table.metadata.num_row_groups)
    for batch in chain.from_iterable(table.batches(group, given.names, _BATCH_ROWS) for group in groups):
        if batch.nbytes > _MAX_GROUP_BYTES:
            raise ValueError("is too large")
        batch.validate(full=True)
        for column_name, values in zip(given.names, batch.columns, strict=True):
            _check(columns[column_name], values)
        if name in ("evaluations", "former_evaluations"):
            _check_evaluations(batch)
        if name == "steps":
            _check_steps(batch)
        if name == "pictures":
            _check_pictures(batch)
        connection.executemany(insert, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _check(column: Column, values: "pa.Array") -> None:
    """Raises ValueError if a column holds what the ledger never writes."""
    import pyarrow as pa
    from pyarrow import compute

    if column.required and values.null_count:
        raise ValueError(f"lacks values in '{column.name}'")
    if column.type == pa.string():
        pattern = _TEXTS.get(column.name, PLAIN_TEXT)
        longest = compute.max(compute.utf8_length(values)).as_py() or 0
        fits = longest <= _MAX_TEXT and compute.all(compute.match_substring_regex(values, pattern)).as_py() is not False
    elif column.type == pa.binary():
        return  # pictures, which are looked at one by one
    else:
        ends = compute.min_max(values).as_py()
        least, most = ends["min"] or 0, ends["max"] or 0
        if column.name == "loss":
            fits = least >= -MAX_LOSS and most <= MAX_LOSS
        else:
            fits = least >= 0 and most <= (_MAX_COUNT if column.type == pa.int64() else _MAX_NUMBER)
        if column.type == pa.float64():
            fits = fits and compute.all(compute.is_finite(values)).as_py() is not False
    if not fits:
        raise ValueError(f"holds what cannot be a '{column.name}'")


def _check_evaluations(batch: "pa.RecordBatch") -> None:
    for row in batch.to_pylist():
        texts = {key: json.loads(row[key]) for key in ("metrics", "samples")}
        Evaluation.model_validate_json(json.dumps({"loss": row["loss"], "held_out": row["held_out"], **texts}))


def _check_steps(batch: "pa.RecordBatch") -> None:
    for left_out in batch.column("left_out").to_pylist():
        if left_out is not None:
            LeftOut.model_validate_json(left_out)


def _check_pictures(batch: "pa.RecordBatch") -> None:
    for row in batch.to_pylist():
        if Picture(pixels=row["pixels"]).digest != row["digest"]:
            raise ValueError("holds a picture under another one's name")


def _opened(path: Path) -> "Parquet":
    """The file, unless it would take more memory or time than a ledger does."""
    from dedloc_kit.learning.data.sources.pages import Parquet

    if path.stat().st_size > MAX_LEDGER_BYTES:
        raise ValueError("is too large")
    table = Parquet(path.open("rb"))
    groups = (table.metadata.row_group(n) for n in range(table.metadata.num_row_groups))
    if table.metadata.num_rows > _MAX_ROWS or any(group.total_byte_size > _MAX_GROUP_BYTES for group in groups):
        raise ValueError("is too large")
    return table


def _check_version(table: "Parquet") -> None:
    try:
        version = int((table.schema.metadata or {})[VERSION_KEY])
    except (KeyError, ValueError):
        version = 0
    if version < 1:
        raise ValueError("is no table of a ledger")
    if version != VERSION:
        raise ValueError(of_another_version(version))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Tell in one sentence which file is to blame."""
    import pyarrow as pa

    try:
        yield
    except UserError as error:
        raise UserError(f"{path.name} {error}") from None
    except (ValueError, TypeError, OSError, OverflowError, MemoryError, sqlite3.IntegrityError, pa.ArrowException) as e:
        said = (str(e).splitlines() or [""])[0]
        what = said if type(e) is ValueError else f"cannot be read ({said:.200})"
        raise UserError(f"{path.name} {what}") from None


def main() -> int:
    from dedloc_kit.learning.data.sources import pages  # noqa: F401 (its libraries come before the limit)

    confine()
    try:
        fill(*map(Path, sys.argv[1:]))
    except UserError as error:
        os.write(1, f"{error}\n".encode())  # to whoever started this process, which prints it
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
