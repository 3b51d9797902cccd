"""The rows of a file as they stand in it, one by one: what is wrong with a row costs that row and no other.

`datasets` reads many more kinds of file, but a whole file at once and by types that it infers for all rows: one row
that differs changes the values of the others, or takes them along. So the usual kinds are read here.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from dedloc_kit.errors import UserError

MAX_TEXT = 1_000_000
"""Characters of a document of a text file; a longer one is cut, so that a file without blank lines fits the memory."""

_ROWS_AT_ONCE = 500
_HEAD = 4096
_ZEROS = 0.2
"""The share of zero bytes from which on a file is no UTF-8: in UTF-16 every other byte of English is one."""
_BOM8, _BOMS16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_SPACE = re.compile(r"[\s,]*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class Unusable(UserError):
    """A shard of which nothing can be used; the rest of the data may do."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used."""

    number: int
    """From 1 on."""
    reason: str
    """What is wrong, such as `holds int, not text`."""


Row = dict[str, Any] | BadRow


def json_rows(file: Any, columns: tuple[str, ...]) -> Iterator[Row]:
    """The objects of JSON lines, or of one array."""
    lines = io.BufferedReader(file)
    start = _head(lines).lstrip()
    objects = _array(lines) if start.startswith(b"[") else map(_object, lines)
    # A number for each line, so that it can be found; blank ones are no rows.
    for number, value in enumerate(objects, start=1):
        if isinstance(value, dict):
            yield _with_columns(value, columns, number)
        elif value is not None:
            reason = value if isinstance(value, str) else f"is {type(value[0]).__name__}, not an object"
            yield BadRow(number, reason)


def _object(line: bytes) -> Any:
    """The object that a line of JSON holds, a list around what is none, or in words what is wrong with the line."""
    if not line.strip():
        return None
    try:
        found = json.loads(line.decode("utf-8", "surrogateescape"))
        return found if isinstance(found, dict) else [found]
    except (ValueError, RecursionError):
        return "is no whole JSON object" + ("" if line.endswith(b"\n") else ", and the file ends in it")


def _array(file: Any) -> Iterator[Any]:
    text = file.read().decode("utf-8", "surrogateescape")
    decoder = json.JSONDecoder()
    at = _after_space(text, text.index("[") + 1)
    while at < len(text) and text[at] != "]":
        try:
            found, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield "is no whole JSON object, and what follows it cannot be read"
            return
        yield found if isinstance(found, dict) else [found]
        at = _after_space(text, at)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def csv_rows(file: Any, columns: tuple[str, ...], delimiter: str) -> Iterator[Row]:
    """The lines of a table whose first line names the columns. Every value is a string."""
    buffered = io.BufferedReader(file)
    _head(buffered)
    csv.field_size_limit(2**31 - 1)  # of the whole process; the default is less than a long document has
    text = io.TextIOWrapper(buffered, encoding="utf-8", errors="surrogateescape", newline="")
    lines = csv.reader(text, delimiter=delimiter, strict=True)
    names = next(lines, [])
    number = 0
    while True:
        number += 1
        try:
            values = next(lines, None)
        except csv.Error as error:
            yield BadRow(number, f"is no row of a table ({error})")
            continue
        if values is None:
            return
        if len(values) == len(names):
            yield _with_columns(dict(zip(names, values, strict=True)), columns, number)
        elif values:
            yield BadRow(number, f"has {len(values)} fields where the first line names {len(names)}")


def text_rows(file: Any, columns: tuple[str, ...]) -> Iterator[Row]:
    """The documents of a text file, which blank lines end; the column is called `text`."""
    buffered = io.BufferedReader(file)
    _head(buffered)
    text = io.TextIOWrapper(buffered, encoding="utf-8", errors="surrogateescape")
    for number, document in enumerate(_documents(text), start=1):
        yield _with_columns({"text": document}, columns, number)


def _documents(text: io.TextIOWrapper) -> Iterator[str]:
    kept: list[str] = []
    length = 0
    while line := text.readline(MAX_TEXT):
        if line.strip() and length < MAX_TEXT:
            kept.append(line)
            length += len(line)
            continue
        if kept:
            yield "".join(kept).rstrip("\n")
        kept = [line] if line.strip() else []
        length = sum(map(len, kept))
    if kept:
        yield "".join(kept).rstrip("\n")


def parquet_rows(file: Any, columns: tuple[str, ...], first: int = 0) -> Iterator[Row]:
    """The rows of a Parquet file from the row `first` on (0: all), with the columns alone.

    Row groups before that one are not read.
    """
    opened = parquet.ParquetFile(file)
    missing = _missing(opened.schema_arrow.names, columns)
    if missing:
        raise Unusable(missing)
    sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
    begins = np.cumsum([0, *sizes])
    skipped = int(np.searchsorted(begins[1:], first, side="right"))
    number = int(begins[skipped])
    groups = range(skipped, len(sizes))
    for batch in opened.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=list(columns)) if groups else ():
        for row in _rows(batch):
            number += 1
            if number > first:
                yield BadRow(number, row) if isinstance(row, str) else _with_columns(row, columns, number)


def _rows(batch: pyarrow.RecordBatch) -> Iterable[dict[str, Any] | str]:
    try:
        found: list[dict[str, Any] | str] = batch.to_pylist()
        return found
    except ValueError:  # one of them holds bytes that are no text, or a date that is none
        return [_row(batch, row) for row in range(batch.num_rows)]


def _row(batch: pyarrow.RecordBatch, row: int) -> dict[str, Any] | str:
    try:
        return {name: column[row].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except UnicodeDecodeError:
        return "is not UTF-8"
    except ValueError as error:
        return str(error)


def _head(file: "io.BufferedReader[Any]") -> bytes:
    """The beginning of a file of text without its byte-order mark; raises Unusable if it is no UTF-8 as a whole."""
    head = file.peek(_HEAD)[:_HEAD]
    if head.startswith(_BOMS16) or head.count(0) > _ZEROS * len(head):
        raise Unusable("is UTF-16 or no text at all; convert it with: iconv -f UTF-16 -t UTF-8")
    if head.startswith(_BOM8):
        file.read(len(_BOM8))
    return head.removeprefix(_BOM8)


def _with_columns(row: dict[str, Any], columns: tuple[str, ...], number: int) -> Row:
    missing = _missing(row, columns)
    if missing:
        return BadRow(number, missing)
    if any(isinstance(row[column], str) and _SURROGATE.search(row[column]) for column in columns):
        return BadRow(number, "is not UTF-8; if most are not, convert the file with: iconv -f LATIN1 -t UTF-8")
    return row


def _missing(names: Iterable[str], columns: tuple[str, ...]) -> str:
    """What to say if one of the columns is not there; empty if all are."""
    names = sorted(names)
    for column in columns:
        if column not in names:
            return f"has no column '{column}'; set the column to one of: {', '.join(names)[:200]}"
    return ""
