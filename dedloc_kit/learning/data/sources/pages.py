"""Parquet files whose pages are looked at before they are unpacked: of its sizes a file says what it likes."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pyarrow
from pyarrow import parquet

from dedloc_kit.learning.data.sources.formats import Unusable
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
