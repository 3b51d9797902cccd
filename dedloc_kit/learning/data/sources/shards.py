"""The shard files of a data source: which there are, and how one is read to its end over a shaky line."""

import glob
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import fsspec
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.fetching import by_plain_http
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
from dedloc_kit.learning.data.sources.hub_files import check_files, check_loader, commit_of, subsets_in
from dedloc_kit.learning.data.sources.open_files import OpenFiles
from dedloc_kit.learning.data.sources.packed import PACKED, opened, raw, unpacked, unpacking
from dedloc_kit.learning.data.sources.pages import ParquetRows, parquet_rows
from dedloc_kit.learning.data.sources.patience import be_patient
from dedloc_kit.learning.data.sources.splits import canonical, files_in, names_split, split_of
from dedloc_kit.learning.data.sources.streamed import Share, StreamedRows
from dedloc_kit.run.places import HAVE_IT_HERE
from dedloc_kit.run.section import HUB_REPOSITORY
from dedloc_kit.run.task import Source

Warn = Callable[[str], None]

RETRY_PAUSES = (1.0, 4.0, 15.0, 30.0)
"""Seconds before each new attempt after a network error; reading on in between starts the count again."""

LABELS_FILE = "labels.json"
"""In a local dataset: the names of the classes of each column of numbers, as `{"ner_tags": ["O", "B-PER"]}`."""

_LOADERS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "text",
    ".arrow": "arrow",
    ".tar": "webdataset",
}
_READERS: dict[str, Callable[[Any, tuple[str, ...]], Iterator[Row]]] = {
    "parquet": parquet_rows,
    "json": json_rows,
    "csv": partial(csv_rows, delimiter=","),
    "tsv": partial(csv_rows, delimiter="\t"),
    "text": text_rows,
}
"""What is read here; the rest by `datasets`."""
_TEXTS = {"json", "csv", "tsv", "text"}
_LOOKED_AT = 2**20
"""Bytes of a file that is not UTF-8, of which its encoding is told."""
_TRANSIENT_STATUS = {408, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Shard:
    """One file of a source."""

    path: str
    """A local path or a URL such as `hf://datasets/OWNER/NAME@REVISION/FILE`."""
    loader: str
    """What reads it: `parquet`, `json`, `csv`, `tsv`, `text`, or the loader of `datasets` of that name."""
    rows: range | None = None
    """The only rows that are read of it, counted from 0; none: all."""
    share: Share | None = None
    """Of a file that is read from its beginning only, the rows from (begin / size) to (end / size) of it are read."""
    files: OpenFiles | None = field(default=None, compare=False, repr=False)
    """Keeps it open for what follows."""

    @property
    def first(self) -> int:
        """The row that is read first."""
        return self.rows.start if self.rows else 0

    @property
    def seekable(self) -> bool:
        """Whether it can be read from any row on without what comes before: a Parquet file, not within an archive."""
        return self.loader == "parquet" and _loader_of(Path(self.path)) == "parquet"

    def of_group(self, begin: int, size: int) -> range:
        """Which rows are read of a group of rows that begins there; counted from its own beginning."""
        rows = self.rows or range(begin, begin + size)
        return range(max(rows.start - begin, 0), max(min(rows.stop - begin, size), 0))


Reader = Callable[[Source, Shard, Warn], Iterator[Any]]
"""What a shard of a source holds and the task can use, and each bad row; raises Unusable if it is of no use.

It reads only the rows that the shard names.
"""


def find_shards(source: Source, warn: Warn) -> tuple[Shard, ...]:
    """The source's files in a fixed order; raises UserError if the dataset, its split or its files do not exist.

    A local folder holds its files itself or in folders below; `splits.py` says which split a file belongs to. A single
    file is whatever split the source names.
    """
    splits = find_splits(source, warn)
    if source.split not in splits and canonical(source.split) in splits:
        return splits[canonical(source.split)]
    if source.split not in splits:
        names = ", ".join(sorted(splits)) or "none at all"
        raise UserError(
            f"the dataset {source.dataset} has no split '{source.split}'; set the source's split to one of: {names}"
        )
    return splits[source.split]


def find_splits(source: Source, warn: Warn) -> dict[str, tuple[Shard, ...]]:
    """The files of all splits of the source's dataset, by split; otherwise as `find_shards`."""
    path = Path(source.place)
    if not path.is_absolute():  # a name from the network may be one of them, and leads to no file of this machine
        if re.fullmatch(HUB_REPOSITORY, source.place) is None:
            raise UserError(f"the dataset {source.dataset} is not on the Hub, where it is OWNER/NAME; {HAVE_IT_HERE}")
        return _hub_splits(source, warn)
    if path.is_file():
        return {source.split: (_local_shard(path),)}
    if path.is_dir():
        return _folder_splits(source)
    raise UserError(f"the dataset {path} does not exist; correct the path")


def read_shard(shard: Shard, column: str, warn: Warn) -> Iterator[Any]:
    """The values of a column, and the bad rows, in the file's order; otherwise as `read_rows`."""
    for row in read_rows(shard, (column,), warn):
        yield row if isinstance(row, BadRow) else row[column]


def read_rows(shard: Shard, columns: Iterable[str], warn: Warn) -> Iterator[Row]:
    """The shard's rows, in the file's order; each holds the columns, maybe among others, or says why it cannot be used.

    Network errors are announced through `warn` and retried from the row that was reached. Raises Unusable if the file
    has no such column or is not what its name says, and whatever its reader raises if it cannot be read.
    """
    retries = Retries(shard.path, warn)
    reached = shard.first
    fix = ""
    while True:
        try:
            for row in _part(shard, tuple(columns), reached):
                reached += 1
                retries.worked()
                if isinstance(row, BadRow) and row.reason == NOT_UTF8 and shard.loader in _TEXTS:
                    fix = fix or _encoding(shard)
                    row = BadRow(row.number, f"{NOT_UTF8}; {fix}")
                yield row
            return
        except Unusable as error:
            raise Unusable(f"{shard.path} {error}") from None
        except Exception as error:
            retries.wait_or_raise(error)


def _part(shard: Shard, columns: tuple[str, ...], first: int) -> Iterator[Row]:
    """Of the rows that the shard names those from `first` on. A file that stays open is read on where it stands."""
    if shard.files is None:
        stop = shard.rows.stop if shard.rows else None
        yield from islice(_rows(shard, columns, first), None if stop is None else stop - first)
    elif shard.share is not None:
        yield from _of_stream(shard, shard.share, shard.files, columns, first)
    else:
        yield from _of_parquet(shard, shard.files, columns, first)


def _of_parquet(shard: Shard, files: OpenFiles, columns: tuple[str, ...], first: int) -> Iterator[Row]:
    key = (shard.path, columns)
    with unpacking():
        rows = files.take(key, first, ParquetRows)
        if rows is None:
            metadata = files.metadata(shard.path, lambda: read_metadata(shard))
            rows = ParquetRows(opened(shard.path, parquet=True), columns, metadata)
        with _closed_if_it_fails(rows):
            yield from rows.read(first, shard.rows.stop if shard.rows else None)
    files.put(key, rows)


def _of_stream(shard: Shard, share: Share, files: OpenFiles, columns: tuple[str, ...], skip: int) -> Iterator[Row]:
    key = (shard.path, columns)
    with unpacking():
        rows = None if skip else files.take(key, share[0], StreamedRows)
        rows = rows or _streamed(shard, columns)
        with _closed_if_it_fails(rows):
            for row in rows.share(share, skip):
                files.row = rows.number
                yield row
    files.put(key, rows)


class _Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def _closed_if_it_fails(file: _Closable) -> Iterator[None]:
    """A file that was not read to where it should be is closed."""
    try:
        yield
    except BaseException:
        file.close()
        raise


def _streamed(shard: Shard, columns: tuple[str, ...]) -> StreamedRows:
    read = _READERS.get(shard.loader)
    if read is None or _loader_of(Path(shard.path)) is None:
        return _measured(_rows_of_datasets(shard, columns))
    file = raw(shard.path)
    taken = 0

    def told() -> int:
        nonlocal taken
        if not file.closed:
            taken = file.tell()
        return taken

    content = unpacked(file)
    return StreamedRows(iter(read(content, columns)), told, content.close)


def _measured(rows: Iterator[Row]) -> StreamedRows:
    """Rows of which nobody knows where they lie in their file: it has about as many bytes as they have."""
    taken = 0

    def measured() -> Iterator[Row]:
        nonlocal taken
        for row in rows:
            taken += sum(map(_size, row.values())) if isinstance(row, dict) else 0
            yield row

    return StreamedRows(measured(), lambda: taken, lambda: None)


def _size(value: Any) -> int:
    """Bytes of a text or a picture, about; others are small."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return len(value) if isinstance(value, str | bytes) else 8


def numbered(shard: Shard, rows: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """The rows of a shard, as they are read, each with its number in the file, from 1 on."""
    for number, row in enumerate(rows, start=shard.first + 1):
        yield shard.files.row if shard.files is not None and shard.share is not None else number, row


def _encoding(shard: Shard) -> str:
    """In words what to do with a file that is not UTF-8."""
    with unpacking(), opened(shard.path) as file:
        return which(file.read(_LOOKED_AT))


def count_rows(shard: Shard, warn: Warn) -> int:
    """How many rows a Parquet file has, as it says; errors as `read_rows`."""
    return int(metadata_of(shard, warn).num_rows)


def metadata_of(shard: Shard, warn: Warn) -> Any:
    """What a Parquet file says of itself; errors as `read_rows`."""
    retries = Retries(shard.path, warn)
    while True:
        try:
            with unpacking():
                if shard.files is not None:
                    return shard.files.metadata(shard.path, lambda: read_metadata(shard))
                return read_metadata(shard)
        except Unusable as error:
            raise Unusable(f"{shard.path} {error}") from None
        except Exception as error:
            retries.wait_or_raise(error)


def read_metadata(shard: Shard) -> Any:
    """The same, once; raises whatever its reader does."""
    with opened(shard.path, parquet=True) as file:
        return parquet.ParquetFile(file).metadata


def sizes_of(shards: Sequence[Shard], warn: Warn) -> tuple[int, ...]:
    """The bytes of each file, as a listing tells them; nothing of the files is read.

    Network errors are announced through `warn` and tried again; raises UserError if they stay.
    """
    known: dict[str, int] = {}
    for shard in shards:
        if shard.path in known:
            continue
        if "://" not in shard.path:
            with suppress(OSError):  # a file that has gone is lost when it is read
                known[shard.path] = Path(shard.path).stat().st_size
            continue
        system, name = fsspec.core.url_to_fs(shard.path)
        retries = Retries(shard.path, warn)
        while True:
            try:
                known[shard.path] = int(system.info(name).get("size") or 0)
                break
            except Exception as error:
                try:
                    retries.wait_or_raise(error)
                except Exception:
                    raise UserError(
                        f"{shard.path} cannot be looked up ({one_line(error)}); check the Internet connection"
                    ) from None
    return tuple(known.get(shard.path, 0) for shard in shards)


def _rows(shard: Shard, columns: tuple[str, ...], first: int) -> Iterator[Row]:
    """From the row `first` on, whatever rows the shard names."""
    read = _READERS.get(shard.loader)
    # The Hub has archives too, such as .zip, that only `datasets` opens.
    if read is None or _loader_of(Path(shard.path)) is None:
        yield from islice(_rows_of_datasets(shard, columns), first, None)
        return
    with unpacking(), opened(shard.path, parquet=read is parquet_rows) as file:
        if read is parquet_rows:
            yield from parquet_rows(file, columns, first)
        else:
            yield from islice(read(file, columns), first, None)


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

    retries = Retries(shard.path, warn)
    while True:
        try:
            feature = (_open(shard).features or {}).get(column)
            break
        except Exception as error:
            retries.wait_or_raise(error)
    feature = getattr(feature, "feature", feature)  # of a list: what each entry is
    return list(feature.names) if isinstance(feature, ClassLabel) else None


class Retries:
    """Counts failures in a row and waits longer after each."""

    def __init__(self, what: str, warn: Warn) -> None:
        self.what = what
        self.warn = warn
        self.failures = 0

    def worked(self) -> None:
        """The next failure is the first in a row."""
        self.failures = 0

    def wait_or_raise(self, error: Exception) -> None:
        """Announce the error and wait; raises it if trying again would not help or has been done enough."""
        if not is_transient(error) or self.failures >= len(RETRY_PAUSES):
            raise error
        pause = RETRY_PAUSES[self.failures]
        self.failures += 1
        self.warn(
            f"{self.what}: {one_line(error)}; trying again in {pause:g} s ({self.failures} of {len(RETRY_PAUSES)})"
        )
        time.sleep(pause)


def one_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__


_LINE_ERRORS = (
    ("httpx", "RequestError"),
    ("httpx2", "RequestError"),
    ("aiohttp", "ClientError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
)
"""How the libraries through which `datasets` and huggingface_hub read tell of a broken line. Which these are differs
from version to version; one that was not imported cannot have raised it."""


def is_transient(error: Exception) -> bool:
    """Whether an error is one of the line, so that the same may work later."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status in _TRANSIENT_STATUS
    libraries = [getattr(sys.modules[name], kind) for name, kind in _LINE_ERRORS if name in sys.modules]
    return isinstance(error, (ConnectionError, TimeoutError, *libraries))


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


def _loader_of(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in PACKED]
    return _LOADERS.get(suffixes[-1]) if suffixes else None


def _local_shard(path: Path) -> Shard:
    loader = _loader_of(path)
    if loader is None:
        raise UserError(
            f"{path} is none of the known kinds of data; use one of: {', '.join(_LOADERS)} "
            f"(text also packed: {', '.join(PACKED)})"
        )
    return Shard(str(path), loader)


def local_folder(source: Source) -> Path | None:
    """The folder of a local dataset, or of its subset; none if it is on the Hub."""
    folder = Path(source.place)
    if not folder.is_absolute():
        return None
    return folder / source.subset if source.subset else folder


def _folder_splits(source: Source) -> dict[str, tuple[Shard, ...]]:
    folder = local_folder(source)
    assert folder is not None, "others are on the Hub"
    if not folder.is_dir():
        have = ", ".join(path.name for path in sorted(folder.parent.iterdir()) if _is_subset(path))
        fix = f"set the source's subset to one of: {have}" if have else "leave the subset out"
        raise UserError(f"{folder.parent} has no subset '{folder.name}'; {fix}")
    splits: dict[str, tuple[Shard, ...]] = {}
    for path in sorted(files_in(folder)):
        if _loader_of(path):
            split = split_of(path.relative_to(folder))
            splits[split] = (*splits.get(split, ()), _local_shard(path))
    if not splits:
        raise UserError(f"{folder} holds no data; put {', '.join(_LOADERS)} files into it")
    return splits


def _is_subset(path: Path) -> bool:
    hidden = path.name.startswith((".", "__"))
    return path.is_dir() and not hidden and not names_split(path.name) and any(map(_loader_of, files_in(path)))


def strays(source: Source) -> list[str]:
    """The files of a local folder that are not read, for their kind is unknown."""
    folder = local_folder(source)
    if folder is None or not folder.is_dir():
        return []
    return [str(path.relative_to(folder)) for path in files_in(folder) if not _loader_of(path)]


def _hub_splits(source: Source, warn: Warn) -> dict[str, tuple[Shard, ...]]:
    from datasets import load_dataset_builder
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    missing = (DatasetNotFoundError, DataFilesNotFoundError, RepositoryNotFoundError, RevisionNotFoundError)
    if os.path.lexists(source.dataset):  # `datasets` would take that, whatever it is told
        raise UserError(
            f"there is a {source.dataset} in the current folder, which would hide the dataset of this name on the Hub; "
            "start from another folder"
        )
    disable_progress_bars()  # for a README of 200 bytes
    be_patient()
    retries = Retries(source.dataset, warn)
    while True:
        try:
            with by_plain_http():
                commit = commit_of(source.dataset, source.revision)
                builder = load_dataset_builder(source.dataset, name=source.subset, revision=commit)
            break
        except UserError:
            raise
        except missing as error:
            raise UserError(
                f"the dataset {source.dataset} is not open to you on the Hub ({one_line(error)}); correct its name, or "
                "log in with: hf auth login"
            ) from None
        except ValueError as error:
            if subsets := subsets_in(error):
                have = f"has no subset '{source.subset}'" if source.subset else "has several subsets"
                raise UserError(
                    f"the dataset {source.dataset} {have}; set the source's subset to one of: {', '.join(subsets)}"
                ) from None
            raise UserError(
                f"the dataset {source.dataset} cannot be used ({one_line(error)}); correct the subset"
            ) from None
        except Exception as error:
            try:
                retries.wait_or_raise(error)
            except Exception:
                raise UserError(
                    f"the dataset {source.dataset} cannot be looked up ({one_line(error)}); "
                    "check the Internet connection and the dataset's name"
                ) from None
    files = {str(split): sorted(map(str, paths)) for split, paths in (builder.config.data_files or {}).items()}
    check_loader(source.dataset, builder.name)
    check_files(source.dataset, chain.from_iterable(files.values()))
    return {
        split: tuple(Shard(path, _loader_of(Path(path)) or builder.name) for path in paths)
        for split, paths in files.items()
    }
