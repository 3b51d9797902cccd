"""Parquet files whose pages are looked at before they are unpacked: of its sizes a file says what it likes."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow
from pyarrow import compute, parquet

from dedloc_kit.learning.data.sources.charsets import NOT_UTF8
from dedloc_kit.learning.data.sources.formats import BadRow, Row, Unusable, no_column, with_columns
from dedloc_kit.learning.data.sources.tables import MAX_ROW, TOO_LONG
from dedloc_kit.learning.data.sources.thrift import I32, STRUCT, header

MAX_PAGE, MAX_COLUMN, RATIO = 2**27, 2**28, 16
"""Bytes that a page, and a column of lists in a row group, may become; more only if they are at most `RATIO` times as
many as lie in the file."""
MAX_BATCH = 2**26
"""Bytes of a column that are expanded at a time, unless one row has more."""

MAX_HELD = 2**26
"""Bytes of a column of a row group, as they lie in the file, that are held; of a larger one a page is read at a time.
"""

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
"""Kinds of pages."""
_ENCODINGS = {6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}
"""How long values encoded so become, or the lengths of them, only unpacking would tell."""
_ROWS_AT_ONCE = 500
_READ_AT_ONCE, _LOOKED_AT = 2**20, 2**14


@dataclass
class _Chunk:
    """A column of a row group, as it lies in the file, and what its pages claim."""

    data: "bytes | _Window"
    lists: bool
    texts: bool
    widest: int
    """Bytes that one value takes at most beside its page: a text of a dictionary may stand there again and again."""
    densest: int = 1
    """Bytes that one value takes on average in the page where this is most."""
    values: int = 0
    unpacked: int = 0
    """Bytes of all pages."""

    @property
    def whole(self) -> int:
        """Bytes that the column takes at most."""
        return self.unpacked + self.values * self.widest


class Parquet:
    """Reads a Parquet file row group by row group; raises Unusable before one would take much more than it has."""

    def __init__(self, file: Any, metadata: Any = None) -> None:
        self._content = _Content(file)
        self._file = parquet.ParquetFile(self._content, metadata=metadata, pre_buffer=False)
        self.metadata = self._file.metadata
        self.schema = self._file.schema_arrow

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._content.close()

    @property
    def held(self) -> int:
        """Bytes of the file that are in memory."""
        return sum(len(chunk) for chunk in self._content.chunks.values() if isinstance(chunk, bytes))

    def batches(self, group: int, columns: list[str], rows: int) -> Iterator[pyarrow.RecordBatch]:
        """Columns of a row group, so many rows at a time or less.

        Texts in lists are dictionary arrays where one dictionary could become very many texts.
        """
        if not self.metadata.row_group(group).num_rows:
            return
        file, dictionaries = self._file, []
        for name, chunk in self._load(group, columns).items():
            if not chunk.lists:
                rows = max(1, min(rows, MAX_BATCH // max(chunk.widest, chunk.densest)))
            elif chunk.texts and chunk.whole > MAX_BATCH:
                dictionaries.append(name)
                _bound(f"the column '{name}'", chunk.unpacked + chunk.values * 8, MAX_COLUMN, len(chunk.data))
            else:
                _bound(f"the column '{name}'", chunk.whole, MAX_COLUMN, len(chunk.data))
        if dictionaries or not self._content.holds_all:
            file = parquet.ParquetFile(
                self._content,
                metadata=self.metadata,
                read_dictionary=dictionaries,
                pre_buffer=False,
                buffer_size=0 if self._content.holds_all else _READ_AT_ONCE,
            )
        yield from file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)

    def _load(self, group: int, columns: list[str]) -> dict[str, _Chunk]:
        """The columns' parts that hold values, by their paths in the schema."""
        self._content.chunks.clear()
        chunks = {}
        described = self.metadata.row_group(group)
        for number in range(described.num_columns):
            column = described.column(number)
            if not any(f"{column.path_in_schema}.".startswith(f"{wanted}.") for wanted in columns):
                continue
            begins = [column.dictionary_page_offset, column.data_page_offset]
            begin = min((begin for begin in begins if begin), default=-1)
            kind = self.metadata.schema.column(number)
            name, width = column.path_in_schema, max(kind.length or 0, 8)
            _bound(f"a value of the column '{name}'", width, MAX_PAGE, 0)
            data = self._content.load(begin, column.total_compressed_size)
            chunks[name] = _Chunk(data, kind.max_repetition_level > 0, kind.physical_type == "BYTE_ARRAY", width)
            _look(chunks[name], name, column.num_values)
        return chunks


class _Content:
    """A file of which only what was loaded is read, once anything was."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self.chunks: dict[int, bytes | _Window] = {}
        """By their places."""
        self._reached: dict[int, int] = {}
        """Up to where each was read."""

    @property
    def holds_all(self) -> bool:
        return not any(isinstance(chunk, _Window) for chunk in self.chunks.values())

    def load(self, begin: int, length: int) -> "bytes | _Window":
        """A part of the file, which is read if it is small; raises Unusable if there is no such part."""
        size = self._file.seek(0, io.SEEK_END)
        if min(begin, length) < 0 or begin + length > size:
            raise Unusable("names places that are not in it; download it, or write it, again")
        self._reached[begin] = begin
        if length > MAX_HELD:
            self.chunks[begin] = _Window(self._file, begin, length)
        else:
            self._file.seek(begin)
            self.chunks[begin] = self._file.read(length)
        return self.chunks[begin]

    def read(self, size: int = -1) -> Any:
        at = self._file.tell()
        if not self.chunks:
            return self._file.read(size)
        for begin, chunk in self.chunks.items():
            # From its first page on, as it was looked at: what is a page follows from where one begins.
            if at in (begin, self._reached.get(begin)) and 0 <= size <= begin + len(chunk) - at:
                self._reached[begin] = at + size
                if isinstance(chunk, _Window):
                    return self._file.read(size)
                return chunk if size == len(chunk) else chunk[at - begin : at - begin + size]
        raise Unusable("is no Parquet file as others write them; write it again")

    def seek(self, offset: int, whence: int = 0) -> Any:
        return self._file.seek(offset, whence)

    def tell(self) -> Any:
        return self._file.tell()

    def close(self) -> None:
        self.closed = True
        self._file.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False


class _Window:
    """The bytes of a large part of a file one by one; a few of them are held."""

    def __init__(self, file: Any, begin: int, length: int) -> None:
        self._file, self._begin, self._length = file, begin, length
        self._at, self._held = 0, b""

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, at: int) -> int:
        if at >= self._length:
            raise IndexError
        if not self._at <= at < self._at + len(self._held):
            self._file.seek(self._begin + at)
            self._at, self._held = at, self._file.read(min(_LOOKED_AT, self._length - at))
        return int(self._held[at - self._at])


def _bound(what: str, claimed: int, free: int, lies: int) -> None:
    if claimed > max(free, RATIO * lies):
        raise Unusable(
            f"holds {lies:,} bytes that become {claimed / 2**20:,.0f} MiB, for {what}; write it again in smaller row "
            "groups"
        )


def _look(chunk: _Chunk, name: str, values: int) -> None:
    """What the pages of a column claim; raises Unusable if one would become too large.

    :param values: how many the file says that there are: what follows the pages that hold them is not read
    """
    at = 0
    while chunk.values < values:
        try:
            found, at = header(chunk.data, at)
            kind, unpacked, lies = found[1, I32], found[2, I32], found[3, I32]
            described = found.get((8 if kind == _DATA_2 else 5, STRUCT), {})
            if kind in (_DATA, _DATA_2):
                values_in = max(described[1, I32], 0)
                chunk.values += values_in
                chunk.densest = max(chunk.densest, unpacked // max(values_in, 1))
                encoding = _ENCODINGS.get(described[4 if kind == _DATA_2 else 2, I32])
            else:
                encoding = None
        except (IndexError, KeyError, ValueError):
            raise Unusable(f"has pages of the column '{name}' that cannot be read; write it again") from None
        if encoding:
            raise Unusable(f"has pages encoded as {encoding}, which are not read; write it again without")
        if not 0 <= lies <= len(chunk.data) - at:
            raise Unusable(f"has pages of the column '{name}' that are cut; write it again")
        _bound(f"a page of the column '{name}'", unpacked, MAX_PAGE, lies)
        chunk.unpacked += unpacked
        if kind == _DICTIONARY and chunk.texts:
            chunk.widest = max(chunk.widest, unpacked)
        at += lies


def check_columns(columns: tuple[str, ...], schema: Any) -> None:
    """Raise Unusable unless a file has the columns."""
    names = set(_leaves(schema))
    for column in columns:
        if column not in names and column not in schema.names:
            raise Unusable(no_column(column, names))


class ParquetRows:
    """Reads some columns of a Parquet file from any row on. Whoever goes on where they stopped reads on."""

    def __init__(self, file: Parquet, columns: tuple[str, ...]) -> None:
        self._file, self._columns = file, columns
        of_groups = (file.metadata.row_group(group) for group in range(file.metadata.num_row_groups))
        self._begins = np.cumsum([0, *(group.num_rows for group in of_groups)])
        self._batches: Iterator[pyarrow.RecordBatch] = iter(())
        self._rest: pyarrow.RecordBatch | None = None
        self.at = -1
        """The row that comes next."""

    @property
    def held(self) -> int:
        """Bytes of the file."""
        return self._file.held

    def close(self) -> None:
        self._file.__exit__(None, None, None)

    def read(self, first: int, stop: int | None = None) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
        """The rows from `first` on, before `stop`, each batch with its place. Row groups before them are not read."""
        stop = int(self._begins[-1]) if stop is None else stop
        if first != self.at:
            self._enter(first)
        while self.at < stop:
            if not self._rest:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    return
                continue
            part = self._rest.slice(0, stop - self.at)
            begin, self._rest = self.at, self._rest.slice(part.num_rows)
            self.at += part.num_rows
            yield begin, part

    def _enter(self, first: int) -> None:
        group = int(np.searchsorted(self._begins[1:], first, side="right"))
        self.at, self._rest = first, None
        self._batches = self._from_group(group)
        skipped = first - int(self._begins[group]) if group < len(self._begins) - 1 else 0
        while skipped and (batch := next(self._batches, None)) is not None:
            self._rest = batch.slice(min(skipped, batch.num_rows))
            skipped -= min(skipped, batch.num_rows)

    def _from_group(self, group: int) -> Iterator[pyarrow.RecordBatch]:
        for number in range(group, len(self._begins) - 1):
            yield from self._file.batches(number, list(self._columns), _ROWS_AT_ONCE)


def _leaves(fields: Any, before: str = "") -> Iterator[str]:
    """The names of columns, and in place of structures, but for pictures, the names of what is in them."""
    for field in fields:
        inner = list(field.type) if pyarrow.types.is_struct(field.type) else []
        if inner and {each.name for each in inner} != {"bytes", "path"}:
            yield from _leaves(inner, f"{before}{field.name}.")
        else:
            yield before + field.name


def rows_of(batch: pyarrow.RecordBatch, columns: tuple[str, ...], begin: int) -> Iterator[Row]:
    """The rows of a batch that begins at this place of its file."""
    for number, row in enumerate(_rows(batch), start=begin + 1):
        yield BadRow(number, row) if isinstance(row, str) else with_columns(row, columns, number)


def _rows(batch: pyarrow.RecordBatch) -> Iterator[dict[str, Any] | str]:
    dictionaries = [leaf for column in batch.columns for leaf in _dictionaries(column)]
    if dictionaries and sum(_most(leaf) for leaf in dictionaries) > MAX_BATCH:
        half = batch.num_rows // 2
        if half:
            yield from _rows(batch.slice(0, half))
            yield from _rows(batch.slice(half))
        elif sum(_exactly(leaf) for leaf in dictionaries) > MAX_ROW:
            yield TOO_LONG
        else:
            yield _row(batch, 0)
        return
    try:
        yield from batch.to_pylist()
    except ValueError:  # one of them holds bytes that are no text, or a date that is none
        yield from (_row(batch, row) for row in range(batch.num_rows))


def _dictionaries(array: Any) -> Iterator[Any]:
    """The dictionary arrays in one of lists or structures."""
    if pyarrow.types.is_dictionary(array.type):
        yield array
    elif pyarrow.types.is_map(array.type):  # which cannot be flattened
        pair = pyarrow.struct([array.type.key_field, array.type.item_field])
        yield from _dictionaries(array.cast(pyarrow.list_(pair)))
    elif pyarrow.types.is_nested(array.type):
        inner = array.flatten()
        for each in inner if isinstance(inner, list) else [inner]:
            yield from _dictionaries(each)


def _most(array: Any) -> int:
    """Bytes that the values of a dictionary array take at most."""
    return len(array) * (compute.max(compute.binary_length(array.dictionary)).as_py() or 0)


def _exactly(array: Any) -> int:
    return compute.sum(compute.take(compute.binary_length(array.dictionary), array.indices)).as_py() or 0


def _row(batch: pyarrow.RecordBatch, row: int) -> dict[str, Any] | str:
    try:
        return {name: column[row].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
    except UnicodeDecodeError:
        return NOT_UTF8
    except ValueError as error:
        return str(error)
