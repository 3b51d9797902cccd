"""Token ids as Parquet files: whoever reads them neither tokenizes nor downloads more than it must."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from dedloc_kit.learning.data.sources.formats import Unusable
from dedloc_kit.learning.data.sources.packed import opened
from dedloc_kit.learning.data.sources.pages import Parquet
from dedloc_kit.learning.data.sources.shards import Retries, Shard, Warn
from dedloc_kit.learning.data.text.tokens import Document, Ids, ids_dtype

TOKENS, SENTENCES = "tokens", "sentences"
"""The columns: a list of ids, and a list of the number of tokens up to each sentence's end."""
VOCABULARY = b"dedloc_kit.vocabulary"
"""The key of the vocabulary's hash in a file's metadata."""

_ROWS_AT_ONCE = 500
"""Documents in one row group, which a reader fetches at once."""
_TOKENS_IN_A_FILE = 32_000_000


def write_token_shards(documents: Iterable[Document], folder: Path, vocabulary_hash: str, vocabulary: int) -> int:
    """Write documents to `train-00000.parquet` and so on in an existing folder; returns the number of tokens."""
    schema = pyarrow.schema(
        [
            (TOKENS, pyarrow.list_(pyarrow.from_numpy_dtype(ids_dtype(vocabulary)))),
            (SENTENCES, pyarrow.list_(pyarrow.uint32())),
        ],
        metadata={VOCABULARY: vocabulary_hash},
    )
    documents = iter(documents)
    some = list(islice(documents, _ROWS_AT_ONCE))
    total = 0
    for number in count():
        if not some:
            return total
        written = 0
        path = folder / f"train-{number:05d}.parquet"
        with parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
            while some and written < _TOKENS_IN_A_FILE:
                columns = [lists([d.ids for d in some]), lists([d.ends for d in some])]
                writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))
                written += sum(len(document.ids) for document in some)
                some = list(islice(documents, _ROWS_AT_ONCE))
        total += written
    raise AssertionError("not reached")


def read_token_shard(shard: Shard, vocabulary_hash: str, vocabulary: int, warn: Warn) -> Iterator[Document]:
    """The documents of a shard, in its order.

    Network errors are announced through `warn` and retried from the row group that was reached. Raises Unusable if
    the file holds no token ids or those of another vocabulary, and whatever pyarrow raises if it cannot be read.
    """
    for table in tables(shard, [TOKENS, SENTENCES], lambda schema: _check(schema, vocabulary_hash), warn):
        yield from _documents(table, shard, vocabulary)


def tables(shard: Shard, columns: list[str], check: Callable[[Any], None], warn: Warn) -> Iterator[Any]:
    """The shard's rows, as a table for each row group that holds some of them.

    :param check: is given the schema of the file first, and raises Unusable if it is not right, without its path

    Errors as `read_token_shard`.
    """
    retries = Retries(shard.path, warn)
    done = 0
    while True:
        try:
            with opened(shard.path, parquet=True) as content:
                file = Parquet(content)
                check(file.schema)
                begin = 0
                for group in range(file.metadata.num_row_groups):
                    size = file.metadata.row_group(group).num_rows
                    wanted = shard.of_group(begin, size)
                    begin += size
                    if group >= done and wanted:
                        yield file.table(group, columns).slice(wanted.start, len(wanted))
                        done = group + 1
                        retries.worked()
            return
        except Unusable as error:
            raise Unusable(f"{shard.path} {error}") from None
        except Exception as error:
            retries.wait_or_raise(error)


def _check(schema: Any, vocabulary_hash: str) -> None:
    if not {TOKENS, SENTENCES} <= set(schema.names):
        raise Unusable(
            f"has no columns '{TOKENS}' and '{SENTENCES}'; "
            "write it with: dedloc tokenizer RUN.toml --shards, or leave 'tokenized' out of the source"
        )
    if (schema.metadata or {}).get(VOCABULARY) != vocabulary_hash.encode():
        raise Unusable(
            "was written with another tokenizer than the run's; write it again with: dedloc tokenizer RUN.toml --shards"
        )


def _documents(table: Any, shard: Shard, vocabulary: int) -> Iterator[Document]:
    """Copies, since a slice would keep its whole row group in memory. Every value is checked: it indexes arrays."""
    ids, starts = flat(table.column(TOKENS), shard)
    ends, end_starts = flat(table.column(SENTENCES), shard)
    lengths, counts = np.diff(starts), np.diff(end_starts)
    steps = np.diff(ends.astype(np.int64), prepend=0)
    first = end_starts[:-1][counts > 0]
    steps[first] = ends[first]
    last = np.zeros_like(lengths)
    last[counts > 0] = ends[end_starts[1:][counts > 0] - 1]
    if ids.max(initial=0) >= vocabulary or (steps <= 0).any() or (last != lengths).any():
        raise Unusable(f"{shard.path} holds token ids or sentence ends that cannot be; write it again")
    for row in range(table.num_rows):
        yield Document(ids[starts[row] : starts[row + 1]].copy(), ends[end_starts[row] : end_starts[row + 1]].copy())


def flat(column: Any, shard: Shard) -> tuple[Ids, Any]:
    """All values of a column of lists of ids, and where each list starts, with the end of the last. Raises Unusable."""
    lists = column.combine_chunks()
    if not pyarrow.types.is_list(lists.type) or not pyarrow.types.is_unsigned_integer(lists.type.value_type):
        raise Unusable(f"{shard.path} holds {lists.type} where token ids should be; write it again")
    if lists.null_count or lists.values.null_count:
        raise Unusable(f"{shard.path} has empty values; write it again")
    offsets = lists.offsets.to_numpy().astype(np.int64)
    return lists.values.to_numpy()[offsets[0] : offsets[-1]], offsets - offsets[0]


def lists(arrays: list[Ids]) -> Any:
    """A column of such lists."""
    offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int32)
    return pyarrow.ListArray.from_arrays(offsets, np.concatenate(arrays))
