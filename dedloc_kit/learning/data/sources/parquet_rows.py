"""The rows of Parquet files, read on from wherever one stands."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow
from pyarrow import compute

from dedloc_kit.learning.data.sources.charsets import NOT_UTF8
from dedloc_kit.learning.data.sources.formats import BadRow, Row, Unusable, no_column, with_columns
from dedloc_kit.learning.data.sources.pages import MAX_BATCH, Parquet
from dedloc_kit.learning.data.sources.tables import MAX_ROW, TOO_LONG

_ROWS_AT_ONCE = 500


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
