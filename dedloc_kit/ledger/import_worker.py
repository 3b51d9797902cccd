"""Fills a new ledger from a copy that may be hostile: everything is bounded before it takes memory, disk or time.

A Parquet file of some hundred bytes may unpack to gigabytes, and of its sizes it says what it likes. So the list of
an archive's files and each file's footer, which are read at once, are short; pages are looked at before they are
unpacked (`Parquet`); rows come in small batches; the new file has a largest size and the whole a deadline.
"""

import io
import json
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dedloc_kit.config.section import PLAIN_TEXT
from dedloc_kit.errors import UserError
from dedloc_kit.ledger.schema import VERSION, of_another_version, prepare
from dedloc_kit.ledger.tables import VERSION_KEY, Column, columns_of, table_names
from dedloc_kit.records.contributors import MAX_LEDGER_BYTES
from dedloc_kit.records.evaluation import Evaluation, Picture
from dedloc_kit.records.steps import MAX_LOSS, LeftOut

if TYPE_CHECKING:
    import pyarrow as pa

    from dedloc_kit.learning.data.sources.pages import Parquet

_BATCH_ROWS, _ROWS_AT_ONCE = 1000, 100
"""That are unpacked, and of these, that become objects of Python."""
_MAX_DIRECTORY, _MAX_FOOTER = 2**16, 2**21
"""Bytes of the list of an archive's files, and of a file's footer; once read they take up to some 300 times as much."""
_MAX_PAGES = 4 * MAX_LEDGER_BYTES // 4096
"""Of the new file."""
_MAX_ROWS = 10**8
_MAX_GROUP_BYTES = 2**28
"""Of what is held or unpacked at a time, as a file says of itself."""

_MAX_COUNT, _MAX_NUMBER, _MAX_TEXT = 2**53, 1e12, 100_000
_TEXTS = {
    **dict.fromkeys(("peer", "trainer", "host"), "^[0-9A-Za-z]{1,128}$"),
    "session": "^([0-9a-f]{0,64}|earlier)$",
    "round": "^[0-9a-f]{0,64}$",
    "digest": "^[0-9a-f]{64}$",
}
"""What a text may be by its column; any other has no control characters."""
_WRONG = (ValueError, TypeError, OSError, OverflowError, RecursionError, MemoryError, sqlite3.IntegrityError)
"""What reading a hostile file raises, besides Arrow's own."""


def fill(ledger: Path, copy: Path, seconds: float) -> None:
    """Make a new ledger of a copy; raises UserError if that is none, or takes longer."""
    until = time.monotonic() + seconds
    try:
        if copy.is_file():
            copy = _unzipped(copy, ledger.parent / "copy")
        files = {path.stem: path for path in sorted(copy.glob("*.parquet"))}
        if not files:
            raise UserError(f"there is no copy of a ledger in {copy}")
        with closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA max_page_count = {_MAX_PAGES}")
            prepare(connection)
            connection.execute("BEGIN")
            _fill_tables(connection, files, until)
            connection.execute("COMMIT")
    except (sqlite3.Error, OSError) as error:
        raise UserError(f"{ledger}: the ledger cannot be written ({error}); free disk space") from None


def _unzipped(archive: Path, folder: Path) -> Path:
    try:
        with archive.open("rb") as content, zipfile.ZipFile(_with_short_directory(content)) as opened:
            if sum(file.file_size for file in opened.infolist()) > MAX_LEDGER_BYTES:
                raise UserError(f"{archive.name} is too large")
            for file in opened.infolist():
                if file.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others name their memory
                    raise ValueError("compressed in a strange way")
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


def _with_short_directory(archive: BinaryIO) -> BinaryIO:
    """The archive, of which the list of files is short, as at its very end it must say itself; raises BadZipFile."""
    archive.seek(max(0, archive.seek(0, io.SEEK_END) - 42))
    tail = archive.read()
    end = tail[-22:]
    if end[:4] != b"PK\5\6" or end[20:] != b"\0\0" or tail[:4] == b"PK\6\7":
        raise zipfile.BadZipFile("it does not end as ours do")
    if int.from_bytes(end[12:16], "little") > _MAX_DIRECTORY:
        raise zipfile.BadZipFile("it has too many files")
    return archive


def _fill_tables(connection: sqlite3.Connection, files: Mapping[str, Path], until: float) -> None:
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
            _fill(connection, name, table, until)
    if connection.execute("PRAGMA foreign_key_check").fetchone() is not None:
        raise UserError("the copy of the ledger does not fit together; use another one")


def _fill(connection: sqlite3.Connection, name: str, table: "Parquet", until: float) -> None:
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
        if time.monotonic() > until:
            raise ValueError("takes too long to read")
        if batch.nbytes > _MAX_GROUP_BYTES:
            raise ValueError("is too large")
        batch.validate(full=True)
        for column_name, values in zip(given.names, batch.columns, strict=True):
            _check(columns[column_name], values)
        for some in (batch.slice(at, _ROWS_AT_ONCE) for at in range(0, batch.num_rows, _ROWS_AT_ONCE)):
            if name in ("evaluations", "former_evaluations"):
                _check_evaluations(some)
            if name == "steps":
                _check_steps(some)
            if name == "pictures":
                _check_pictures(some)
            connection.executemany(insert, zip(*(column.to_pylist() for column in some.columns), strict=True))


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

    if (size := path.stat().st_size) > MAX_LEDGER_BYTES:
        raise ValueError("is too large")
    file = path.open("rb")
    file.seek(max(0, size - 8))
    footer, magic = int.from_bytes(file.read(4), "little"), file.read(4)
    if magic != b"PAR1" or footer > _MAX_FOOTER:
        file.close()
        raise ValueError("is too large" if magic == b"PAR1" else "cannot be read: it is no Parquet file")
    file.seek(0)
    table = Parquet(file)
    groups = (table.metadata.row_group(n) for n in range(table.metadata.num_row_groups))
    if table.metadata.num_rows > _MAX_ROWS or any(_bytes_of(group) > _MAX_GROUP_BYTES for group in groups):
        raise ValueError("is too large")
    return table


def _bytes_of(group: "pa.parquet.RowGroupMetaData") -> int:
    """Of a row group, in the file or unpacked, whichever is more."""
    lying = sum(group.column(number).total_compressed_size for number in range(group.num_columns))
    return int(max(lying, group.total_byte_size))


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
    except (*_WRONG, pa.ArrowException) as e:
        said = (str(e).splitlines() or [""])[0]
        what = said if type(e) is ValueError else f"cannot be read ({said:.200})"
        raise UserError(f"{path.name} {what}") from None
