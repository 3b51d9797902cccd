"""The rows of a file as they stand in it, one by one: what is wrong with a row costs that row and no other.

`datasets` reads many more kinds of file, but a whole file at once and by types that it infers for all rows: one row
that differs changes the values of the others, or takes them along. So the usual kinds are read here.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.charsets import NOT_UTF8
from dedloc_kit.learning.data.sources.tables import MAX_ROW, TOO_LONG, Table

MAX_TEXT = 1_000_000
"""Characters of a document of a text file; a longer one is cut, so that a file without blank lines fits the memory."""

_CHUNK = 2**20
_HEAD = 4096
_ZEROS = 0.2
"""The share of zero bytes from which on a file is no UTF-8: in UTF-16 every other byte of English is one."""
_BOM8, _BOMS16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")
_SPACE = re.compile(r"[\s,]*")
_SHOWN = 200
"""Characters of a list of names."""
_PICTURE = {"bytes", "path"}
"""What a picture consists of, as `datasets` writes it."""
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
    kind: str = ""
    """The first row of each kind is told."""


Row = dict[str, Any] | BadRow


def json_rows(file: Any, columns: tuple[str, ...]) -> Iterator[Row]:
    """The objects of JSON lines, or of one array."""
    lines = io.BufferedReader(file)
    start = _head(lines).lstrip()
    objects = _array(lines) if start.startswith(b"[") else map(_object, _json_lines(lines))
    # A number for each line, so that it can be found; blank ones are no rows.
    for number, (value, text) in enumerate(objects, start=1):
        if isinstance(value, dict):
            if ("\\ud" in text or "\\uD" in text) and not _SURROGATE.search(text):  # half a character, written as such
                value |= {column: _mended(value[column]) for column in columns if column in value}
            yield with_columns(value, columns, number)
        elif value is not None:
            reason = value if isinstance(value, str) else f"is {type(value[0]).__name__}, not an object"
            yield BadRow(number, reason)


def _json_lines(lines: Any) -> Iterator[bytes | None]:
    """The lines of a file; none for one that is longer than `MAX_ROW`."""
    while line := lines.readline(MAX_ROW + 1):
        if len(line) <= MAX_ROW:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = lines.readline(MAX_ROW)
        yield None


def _object(line: bytes | None) -> tuple[Any, str]:
    """The object that a line of JSON holds, a list around what is none, or in words what is wrong; and the line."""
    if line is None:
        return TOO_LONG, ""
    if not line.strip():
        return None, ""
    text = line.decode("utf-8", "surrogateescape")
    try:
        found = json.loads(text)
        return found if isinstance(found, dict) else [found], text
    except (ValueError, RecursionError):
        if line.endswith(b"\n") and _SURROGATE.search(text):  # of Shift-JIS some bytes look like JSON's
            return NOT_UTF8, text
        return "is no whole JSON object" + ("" if line.endswith(b"\n") else ", and the file ends in it"), text


def _mended(value: Any) -> Any:
    """A value with U+FFFD for each half of a character, which is none."""
    match value:
        case str():
            return _SURROGATE.sub("\ufffd", value)
        case list():
            return [_mended(each) for each in value]
        case dict():
            return {name: _mended(each) for name, each in value.items()}
    return value


def _array(file: Any) -> Iterator[tuple[Any, str]]:
    """The entries of an array, as `_object` gives them; raises Unusable where it breaks."""
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    decoder = json.JSONDecoder()
    read = text.read(_CHUNK)
    at = read.index("[") + 1
    number = 0
    while True:
        at = _after_space(read, at)
        if read.startswith("]", at):
            return
        try:
            found, end = decoder.raw_decode(read, at)
        except (ValueError, RecursionError):
            found, end = None, 0
        length = len(read) - at
        # It may go on, also as a number of which no more than "1e+" is read.
        if not 0 < end <= len(read) - len("e+0") and length <= MAX_ROW and (more := text.read(max(_CHUNK, length))):
            read, at = read[at:] + more, 0
            continue
        number += 1
        if not end:
            raise Unusable(
                f"is a JSON array whose entry {number} is no whole JSON object of at most {MAX_ROW // 2**20} MiB, and "
                "what follows it cannot be read; mend it, or write one object a line, as .jsonl"
            )
        yield found if isinstance(found, dict) else [found], read[at:end]
        at = end


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def csv_rows(file: Any, columns: tuple[str, ...], delimiter: str) -> Iterator[Row]:
    """The rows of a table whose first line names the columns. Every value is a string, a bad row's number a line's."""
    buffered = io.BufferedReader(file)
    _head(buffered)
    table = Table(io.TextIOWrapper(buffered, encoding="utf-8", errors="surrogateescape", newline=""), delimiter)
    while (names := table.row()) == []:  # a blank line
        pass
    if isinstance(names, str):
        raise Unusable(f"has a first line that names no columns, for it {names}")
    names = names or []
    while (values := table.row(len(names))) is not None:
        if isinstance(values, str):
            yield BadRow(table.line, values)
        elif len(values) == len(names):
            yield with_columns(dict(zip(names, values, strict=True)), columns, table.line)
        elif values:
            yield BadRow(table.line, f"has {len(values)} fields where the first line names {len(names)}")


def text_rows(file: Any, columns: tuple[str, ...]) -> Iterator[Row]:
    """The documents of a text file, which blank lines end; the column is called `text`."""
    buffered = io.BufferedReader(file)
    _head(buffered)
    text = io.TextIOWrapper(buffered, encoding="utf-8", errors="surrogateescape")
    for number, document in enumerate(_documents(text), start=1):
        yield with_columns({"text": document}, columns, number)


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


def _head(file: "io.BufferedReader[Any]") -> bytes:
    """The beginning of a file of text without its byte-order mark; raises Unusable if it is no UTF-8 as a whole."""
    head = file.peek(_HEAD)[:_HEAD]
    if head.startswith(_BOMS16) or head.count(0) > _ZEROS * len(head):
        raise Unusable("is UTF-16 or no text at all; convert it with: iconv -f UTF-16 -t UTF-8")
    if head.startswith(_BOM8):
        file.read(len(_BOM8))
    return head.removeprefix(_BOM8)


def with_columns(row: dict[str, Any], columns: tuple[str, ...], number: int) -> Row:
    """A row, if it has the columns and texts in them."""
    row |= inner_columns(row, columns)
    for column in columns:
        if column not in row:
            return BadRow(number, no_column(column, leaves(row)))
    if any(isinstance(row[column], str) and _SURROGATE.search(row[column]) for column in columns):
        return BadRow(number, NOT_UTF8)
    return row


def inner_columns(row: dict[str, Any], columns: Iterable[str]) -> dict[str, Any]:
    """The columns that a row has within others: `translation.bn` is what `bn` is in `translation`."""
    found = {}
    for column in columns:
        if "." not in column or column in row:
            continue
        value: Any = row
        for name in column.split("."):
            if value is not None and (not isinstance(value, dict) or name not in value):
                break
            value = None if value is None else value[name]
        else:
            found[column] = value
    return found


def leaves(row: dict[str, Any], before: str = "") -> Iterator[str]:
    """The names of a row's columns, and in place of those that hold others the names of these."""
    for name, value in row.items():
        if isinstance(value, dict) and value and not value.keys() <= _PICTURE:
            yield from leaves(value, f"{before}{name}.")
        else:
            yield before + name


def not_text(value: Any, column: str) -> str:
    """What to say of a value that should be text."""
    fix = "if most do, set the source's column to one that holds text"
    if isinstance(value, dict) and (inner := ", ".join(leaves(value, f"{column}."))):
        fix = f"set the source's column to one of: {inner[:_SHOWN]}"
    return f"holds {type(value).__name__}, not text, in the column '{column}'; {fix}"


def no_column(column: str, names: Iterable[str]) -> str:
    """What to say if a column is not among those there are."""
    return f"has no column '{column}'; set the column to one of: {', '.join(sorted(names))[:_SHOWN]}"
