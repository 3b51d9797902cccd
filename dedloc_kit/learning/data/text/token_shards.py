"""Token ids as Parquet files: whoever reads them neither tokenizes nor downloads more than it must."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from pyarrow import parquet

from dedloc_kit.learning.data.sources.formats import Unusable
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.reading import read_batches
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.text.tokens import Document, Ids, ids_dtype

TOKENS, SENTENCES = "tokens", "sentences"
"""The columns: a list of ids, and a list of the number of tokens up to each sentence's end."""
VOCABULARY = b"dedloc_kit.vocabulary"
"""The key of the vocabulary's hash in a file's metadata."""
GROUP_TOKENS, GROUP_DOCUMENTS = 2**17, 500
"""What one row group holds at most: a reader fetches it at once. A single longer document has one of its own."""
FILE_TOKENS = 32_000_000
"""A file is closed once it holds so many."""

_AGAIN = "write it again with: dedloc prepare tokens RUN.toml"


class Written(NamedTuple):
    """What a file holds."""

    documents: int
    tokens: int


def shard_path(folder: Path, number: int, split: str = "train") -> Path:
    """Where a dataset's file of this number lies, from 0 on."""
    return folder / f"{split}-{number:05d}.parquet"


def write_token_shard(documents: Iterable[Document], path: Path, vocabulary_hash: str, vocabulary: int) -> Written:
    """Write all documents to one file, as `write_lists`."""
    types = {TOKENS: ids_dtype(vocabulary), SENTENCES: np.uint32}
    tokens = 0

    def rows() -> Iterator[Sequence[tuple[Ids, ...]]]:
        nonlocal tokens
        for group in _groups(documents):
            tokens += sum(len(document.ids) for document in group)
            yield [(document.ids, document.ends) for document in group]

    return Written(write_lists(rows(), path, types, {VOCABULARY: vocabulary_hash}, use_dictionary=False), tokens)


def write_lists(
    groups: Iterator[Sequence[tuple[Ids, ...]]],
    path: Path,
    types: Mapping[str, type[np.unsignedinteger[Any]]],
    metadata: dict[bytes, str],
    use_dictionary: bool,
) -> int:
    """Write rows of lists of numbers to a Parquet file, which appears when it is whole; without any there is none.
    Returns how many there are.

    :param groups: what stands together in a row group
    :param types: of the numbers in each column
    """
    columns = [(name, pyarrow.list_(pyarrow.from_numpy_dtype(kind))) for name, kind in types.items()]
    schema = pyarrow.schema(columns, metadata=metadata)

    def tables() -> Iterator[pyarrow.Table]:
        for group in groups:
            lists = [
                pyarrow.ListArray.from_arrays(
                    np.cumsum([0, *map(len, column)], dtype=np.int32), np.concatenate(column).astype(kind)
                )
                for kind, column in zip(types.values(), zip(*group, strict=True), strict=True)
            ]
            yield pyarrow.Table.from_arrays(lists, schema=schema)

    return write_tables(tables(), path, schema, use_dictionary)


def write_tables(tables: Iterator[pyarrow.Table], path: Path, schema: pyarrow.Schema, use_dictionary: bool) -> int:
    """Write tables to a Parquet file, each as a row group; otherwise as `write_lists`."""
    number, table = 0, next(tables, None)
    if table is None:
        return 0
    temporary = path.with_name(f"{path.name}.partial")
    try:
        with parquet.ParquetWriter(temporary, schema, compression="zstd", use_dictionary=use_dictionary) as writer:
            while table is not None:
                writer.write_table(table)
                number += table.num_rows
                table = next(tables, None)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return number


def _groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents as they stand together in a row group."""
    group, tokens = list[Document](), 0
    for document in documents:
        if group and (len(group) == GROUP_DOCUMENTS or tokens + len(document.ids) > GROUP_TOKENS):
            yield group
            group, tokens = [], 0
        group.append(document)
        tokens += len(document.ids)
    if group:
        yield group


def read_token_shard(shard: Shard, vocabulary_hash: str, vocabulary: int, warn: Warn) -> Iterator[Document]:
    """The documents of a shard, in its order.

    Network errors are announced through `warn` and retried from where it was. Raises Unusable if the file holds no
    token ids or those of another vocabulary, and whatever pyarrow raises if it cannot be read.
    """
    for batch in read_batches(shard, (TOKENS, SENTENCES), lambda schema: _check(schema, vocabulary_hash), warn):
        yield from _documents(batch, shard, vocabulary)


def _check(schema: Any, vocabulary_hash: str) -> None:
    if not {TOKENS, SENTENCES} <= set(schema.names):
        raise Unusable(
            f"has no columns '{TOKENS}' and '{SENTENCES}'; "
            "write it with: dedloc prepare tokens RUN.toml, or leave 'tokenized' out of the source"
        )
    if (schema.metadata or {}).get(VOCABULARY) != vocabulary_hash.encode():
        raise Unusable(f"was written with another tokenizer than the run's; {_AGAIN}")


def _documents(batch: Any, shard: Shard, vocabulary: int) -> Iterator[Document]:
    """Copies, since a slice would keep its whole row group in memory. Every value is checked: it indexes arrays."""
    ids, starts = flat(batch.column(TOKENS), shard)
    ends, end_starts = flat(batch.column(SENTENCES), shard)
    lengths, counts = np.diff(starts), np.diff(end_starts)
    steps = np.diff(ends.astype(np.int64), prepend=0)
    first = end_starts[:-1][counts > 0]
    steps[first] = ends[first]
    last = np.zeros_like(lengths)
    last[counts > 0] = ends[end_starts[1:][counts > 0] - 1]
    if ids.max(initial=0) >= vocabulary or (steps <= 0).any() or (last != lengths).any():
        raise Unusable(f"{shard.path} holds token ids or sentence ends that cannot be; write it again")
    for row in range(batch.num_rows):
        yield Document(ids[starts[row] : starts[row + 1]].copy(), ends[end_starts[row] : end_starts[row + 1]].copy())


def flat(lists: Any, shard: Shard) -> tuple[Ids, Any]:
    """All values of a column of lists of ids, and where each list starts, with the end of the last. Raises Unusable."""
    if not pyarrow.types.is_list(lists.type) or not pyarrow.types.is_unsigned_integer(lists.type.value_type):
        raise Unusable(f"{shard.path} holds {lists.type} where token ids should be; write it again")
    if lists.null_count or lists.values.null_count:
        raise Unusable(f"{shard.path} has empty values; write it again")
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return lists.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]
