"""The rows of shards, read to their ends over a shaky line."""

import glob
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import pyarrow
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.charsets import NOT_UTF8, which
from dedloc_kit.learning.data.sources.formats import (
    BadRow,
    Row,
    Unusable,
    csv_rows,
    inner_columns,
    json_rows,
    leaves,
    no_column,
    text_rows,
)
from dedloc_kit.learning.data.sources.packed import opened, raw, unpacked, unpacking
from dedloc_kit.learning.data.sources.pages import Parquet
from dedloc_kit.learning.data.sources.parquet_rows import ParquetRows, check_columns, rows_of
from dedloc_kit.learning.data.sources.patience import Retries, Warn, one_line, retried
from dedloc_kit.learning.data.sources.shards import Shard, loader_of

_READERS: dict[str, Callable[[Any, tuple[str, ...]], Iterator[Row]]] = {
    "json": json_rows,
    "csv": partial(csv_rows, delimiter=","),
    "tsv": partial(csv_rows, delimiter="\t"),
    "text": text_rows,
}
"""What is read here, beside Parquet; the rest by `datasets`."""
_LOOKED_AT = 2**20
"""Bytes of a file that is not UTF-8, of which its encoding is told."""

Item = TypeVar("Item")


def read_shard(shard: Shard, column: str, warn: Warn) -> Iterator[Any]:
    """The values of a column, and the bad rows, in the file's order; otherwise as `read_rows`."""
    for _, row in read_rows(shard, (column,), warn):
        yield row if isinstance(row, BadRow) else row[column]


def read_rows(shard: Shard, columns: Iterable[str], warn: Warn, first: int = 0) -> Iterator[tuple[int, Row]]:
    """The shard's rows, in the file's order, each with its number in the file, from 1 on; each holds the columns, maybe
    among others, or says why it cannot be used.

    Network errors are announced through `warn` and retried from the row that was reached. Raises Unusable if the file
    has no such column or is not what its name says, and whatever its reader raises if it cannot be read.

    :param first: so many rows are left out
    """
    fix = ""
    read = _rows_of_parquet if shard.seekable else _rows_of_stream
    for number, row in _read_on(shard, partial(read, shard, tuple(columns)), lambda _: 1, first, warn):
        if isinstance(row, BadRow) and row.reason == NOT_UTF8 and shard.loader in _READERS:
            fix = fix or _encoding(shard)
            row = BadRow(row.number, f"{NOT_UTF8}; {fix}")
        yield number, row


def read_batches(shard: Shard, columns: Iterable[str], check: Callable[[Any], None], warn: Warn) -> Iterator[Any]:
    """The rows of a Parquet file in batches of pyarrow; otherwise as `read_rows`.

    :param check: is given the schema of the file first, and raises Unusable if it is not right, without its path
    """
    read = partial(_batches, shard, tuple(columns), check=check)
    for _, batch in _read_on(shard, read, lambda each: int(each[1].num_rows), 0, warn):
        yield batch


def _read_on(
    shard: Shard, read: Callable[[int], Iterator[Item]], rows: Callable[[Item], int], done: int, warn: Warn
) -> Iterator[Item]:
    """What `read` finds after so many rows, of which `rows` counts how many an item has. Where the line breaks, it is
    called again."""
    retries = Retries(shard.path, warn)
    while True:
        try:
            for item in read(done):
                done += rows(item)
                retries.worked()
                yield item
            return
        except Unusable as error:
            raise Unusable(f"{shard.path} {error}") from None
        except Exception as error:
            retries.wait_or_raise(error)


def _rows_of_parquet(shard: Shard, columns: tuple[str, ...], skip: int) -> Iterator[tuple[int, Row]]:
    for begin, batch in _batches(shard, columns, skip, check=partial(check_columns, columns)):
        yield from enumerate(rows_of(batch, columns, begin), start=begin + 1)


def _batches(
    shard: Shard, columns: tuple[str, ...], skip: int, check: Callable[[Any], None]
) -> Iterator[tuple[int, pyarrow.RecordBatch]]:
    """Batches of a part of a Parquet file without its first rows, each with its place in the file."""
    metadata, begin, stop = None, 0, None
    if shard.part is not None:
        metadata = _metadata(shard)
        begin, stop = (-(-metadata.num_rows * place // shard.part[2]) for place in shard.part[:2])
    begin += skip
    if stop is not None and begin >= stop:
        return

    def enter() -> ParquetRows:
        file = Parquet(opened(shard.path, parquet=True), metadata)
        check(file.schema)
        return ParquetRows(file, columns)

    with _kept_open(shard, columns, begin, enter) as rows:
        yield from rows.read(begin, stop)


def _rows_of_stream(shard: Shard, columns: tuple[str, ...], skip: int) -> Iterator[tuple[int, Row]]:
    begin, end, size = shard.part or (0, 1, 1)
    with _kept_open(shard, columns, -1 if skip else begin, lambda: _stream(shard, columns)) as rows:
        yield from islice(rows.read(begin, None if end == size else end), skip, None)
        rows.at = end


@contextmanager
def _kept_open(shard: Shard, columns: tuple[str, ...], at: int, enter: Callable[[], Any]) -> Iterator[Any]:
    """A reader of the file that stands there, or a new one; it is kept for what follows, unless reading fails."""
    key = (shard.path, columns)
    with unpacking():
        rows = (shard.files.take(key, at) if shard.files else None) or enter()
        try:
            yield rows
        except BaseException:
            rows.close()
            raise
    if shard.files:
        shard.files.put(key, rows)
    else:
        rows.close()


class _Stream:
    """The rows of a file that can be read from its beginning only. A row belongs to the part of the file that had been
    taken when the row's turn came.

    :param rows: all of them
    :param taken: the bytes of the file that are taken so far
    :param close: ends the reading
    """

    held = 0

    def __init__(self, rows: Iterator[Row], taken: Callable[[], int], close: Callable[[], None]) -> None:
        self._rows, self._taken, self.close = enumerate(rows, start=1), taken, close
        self.at = 0
        """Where the part begins that comes next."""

    def read(self, begin: int, end: int | None) -> Iterator[tuple[int, Row]]:
        """The numbers and rows of a part that does not begin before `at`."""
        for _ in self._until(begin):
            pass
        yield from self._until(end)

    def _until(self, end: int | None) -> Iterator[tuple[int, Row]]:
        while (end is None or self._taken() < end) and (row := next(self._rows, None)) is not None:
            yield row


def _stream(shard: Shard, columns: tuple[str, ...]) -> _Stream:
    read = _READERS.get(shard.loader)
    taken = 0
    # The Hub has archives too, such as .zip, that only `datasets` opens.
    if read is None or loader_of(Path(shard.path)) is None:
        # Nobody knows where they lie in their file: it has about as many bytes as they have.
        def measured() -> Iterator[Row]:
            nonlocal taken
            for row in _rows_of_datasets(shard, columns):
                taken += _size(row) if isinstance(row, dict) else 0
                yield row

        return _Stream(measured(), lambda: taken, lambda: None)
    file = raw(shard.path)

    def told() -> int:
        nonlocal taken
        if not file.closed:
            taken = file.tell()
        return taken

    content = unpacked(file)
    return _Stream(read(content, columns), told, content.close)


def _size(value: Any) -> int:
    """Bytes of a text or a picture, about; others are small."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, str | bytes) else 8


def _encoding(shard: Shard) -> str:
    """In words what to do with a file that is not UTF-8."""
    with unpacking(), opened(shard.path) as file:
        return which(file.read(_LOOKED_AT))


def metadata_of(shard: Shard, warn: Warn) -> Any:
    """What a Parquet file says of itself; errors as `read_rows`."""
    try:
        return retried(shard.path, warn, lambda: _metadata(shard))
    except Unusable as error:
        raise Unusable(f"{shard.path} {error}") from None


def _metadata(shard: Shard) -> Any:
    def read() -> Any:
        with unpacking(), opened(shard.path, parquet=True) as file:
            return parquet.ParquetFile(file).metadata

    return shard.files.metadata(shard.path, read) if shard.files else read()


def sizes_of(shards: Sequence[Shard], warn: Warn) -> tuple[int, ...]:
    """The bytes of each file, as a listing tells them; nothing of the files is read.

    Network errors are announced through `warn` and tried again; raises UserError if they stay.
    """
    known: dict[str, int] = {}
    for path in dict.fromkeys(shard.path for shard in shards):
        if "://" not in path:
            with suppress(OSError):  # a file that has gone is lost when it is read
                known[path] = Path(path).stat().st_size
            continue
        system, name = fsspec.core.url_to_fs(path)
        try:
            known[path] = int(retried(path, warn, partial(system.info, name)).get("size") or 0)
        except Exception as error:
            raise UserError(f"{path} cannot be looked up ({one_line(error)}); check the Internet connection") from None
    return tuple(known.get(shard.path, 0) for shard in shards)


def _rows_of_datasets(shard: Shard, columns: tuple[str, ...]) -> Iterator[Row]:
    if "://" not in shard.path:
        with unpacking():
            opened(shard.path).close()  # which tells what it really is
    rows = _open(shard)
    # `decode(False)` leaves values of mixed types as JSON, texts too.
    encoded = [name for name, feature in (rows.features or {}).items() if type(feature).__name__ == "Json"]
    for number, row in enumerate(rows, start=1):
        row |= inner_columns(row, columns)
        for column in columns:
            if column not in row:
                raise Unusable(no_column(column, leaves(row)))
        decoded = {name: json.loads(row[name]) for name in encoded if isinstance(row.get(name), str)}
        try:
            "".join(value for column in columns if isinstance(value := row[column], str)).encode()
        except UnicodeEncodeError:
            yield BadRow(number, NOT_UTF8)
            continue
        yield row | decoded


def class_names(shard: Shard, column: str, warn: Warn) -> list[str] | None:
    """The names that the numbers in a column of class labels stand for, if the file itself tells."""
    if shard.files is not None:
        alone = replace(shard, files=None)
        return shard.files.metadata(f"{column} {shard.path}", lambda: class_names(alone, column, warn))
    from datasets import ClassLabel

    feature = (retried(shard.path, warn, lambda: _open(shard)).features or {}).get(column)
    feature = getattr(feature, "feature", feature)  # of a list: what each entry is
    return list(feature.names) if isinstance(feature, ClassLabel) else None


def _open(shard: Shard) -> Any:
    """The shard as a streaming dataset of `datasets`: nothing is copied to the disk."""
    from datasets import config, load_dataset

    # Left alone, `datasets` retries in silence for minutes; every wait here is announced instead.
    config.STREAMING_OPEN_MAX_RETRIES = config.STREAMING_READ_MAX_RETRIES = 1
    config.STREAMING_OPEN_RETRY_INTERVAL = config.STREAMING_READ_RETRY_INTERVAL = 0
    config.STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL = config.STREAMING_READ_RATE_LIMIT_RETRY_INTERVAL = 0
    # It also reports every opened file to the Hub, a local one too, and waits for the answer.
    config.HF_UPDATE_DOWNLOAD_COUNTS = False
    # `datasets` takes file names for patterns.
    files = {"train": [glob.escape(shard.path)]}
    rows = load_dataset(shard.loader, data_files=files, split="train", streaming=True)
    # Pictures stay files: one that is broken must not take the rest of its shard with it.
    return rows if rows.features is None else rows.decode(False)
