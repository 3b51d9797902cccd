"""Parquet files that take many times what they have: refused, or read a little at a time."""

import base64
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.formats import BadRow, Row, Unusable
from dedloc_kit.learning.data.sources.pages import MAX_BATCH, Parquet
from dedloc_kit.learning.data.sources.parquet_rows import ParquetRows, rows_of
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.text.token_shards import SENTENCES, TOKENS, VOCABULARY, read_token_shard


def written(columns: dict[str, Any], **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file, **{"compression": "zstd", "store_schema": False} | options)
    return file


def parquet_rows(file: io.BytesIO, columns: tuple[str, ...], first: int = 0) -> Iterator[Row]:
    for begin, batch in ParquetRows(Parquet(file), columns).read(first):
        yield from rows_of(batch, columns, begin)


def repeated(text: str, times: int) -> Any:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(times, np.int32)), pyarrow.array([text]))


def test_a_text_that_stands_in_many_rows_is_expanded_a_few_at_a_time() -> None:
    text = "x" * 2**21
    file = written({"text": repeated(text, 300)})
    assert len(file.getvalue()) < 10_000
    before = pyarrow.total_allocated_bytes()
    for number, row in enumerate(parquet_rows(file, ("text",)), start=1):
        assert row == {"text": text}
        assert pyarrow.total_allocated_bytes() - before < 2**27, "and not 600 MB"
        if number == 20:
            return
    raise AssertionError("there are 300")


class Watched(io.BytesIO):
    """A file that knows the longest read."""

    most = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.most = max(self.most, len(found))
        return found


def test_of_a_large_row_group_a_page_is_read_at_a_time_and_few_long_texts() -> None:
    generator = np.random.default_rng(0)
    texts = [base64.b64encode(generator.bytes(3 * 2**18)).decode() for _ in range(100)]
    options = {"use_dictionary": False, "write_batch_size": 1, "compression": "snappy"}
    file = Watched(written({"text": texts, "other": list(range(100))}, **options).getvalue())
    assert parquet.read_metadata(file).num_row_groups == 1
    file.most, before, most = 0, pyarrow.total_allocated_bytes(), 0
    for row, text in zip(parquet_rows(file, ("text", "other")), texts, strict=True):
        assert isinstance(row, dict)
        assert row["text"] == text
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert file.most < 2**22, "and not 100 MB"
    assert most < MAX_BATCH + 2**24
    assert [row["text"] for row in islice(parquet_rows(file, ("text",), 97), 3) if isinstance(row, dict)] == texts[97:]


def test_a_page_is_refused_that_unpacks_to_very_much_more_than_lies_in_the_file() -> None:
    file = written({"text": ["x" * 2**23] * 16, "other": [1] * 16}, use_dictionary=False)
    assert len(file.getvalue()) < 20_000
    with pytest.raises(Unusable, match=r"holds [\d,]+ bytes that become 128 MiB, for a page of the column 'text'"):
        next(parquet_rows(file, ("text",)))
    assert next(parquet_rows(file, ("other",))) == {"other": 1}, "what is not read does no harm"


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_encodings_are_refused_whose_size_no_header_tells(encoding: str, version: str) -> None:
    """Of the first kind each text may begin with all of the one before."""
    options = {"use_dictionary": False, "column_encoding": {"text": encoding}, "data_page_version": version}
    file = written({"text": ["x" * 100_000] * 20}, **options)
    with pytest.raises(Unusable, match=f"has pages encoded as {encoding}, which are not read"):
        next(parquet_rows(file, ("text",)))


def test_lists_of_texts_are_read_whatever_their_dictionary_could_become_and_too_long_rows_left_out() -> None:
    words = [f"word {number}" * (1 + number % 7) for number in range(20_000)]
    rows = [words[number : number + 20] for number in range(0, 20_000, 20)] * 3
    found = list(parquet_rows(written({"words": rows}), ("words",)))
    assert found == [{"words": row} for row in rows]
    indices = pyarrow.array(np.zeros(2002, np.int32))
    texts = pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(["x" * 2**20]))
    lists = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1, 2001, 2002], pyarrow.int32()), texts)
    found = list(parquet_rows(written({"words": lists}), ("words",)))
    assert found == [
        {"words": ["x" * 2**20]},
        BadRow(2, "is longer than 16 MiB"),
        {"words": ["x" * 2**20]},
    ]


def test_maps_are_read_as_lists_are() -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.string())
    few = [[("bn", "one"), ("en", "two")], [], None, [("bn", "three")]]
    rows = parquet_rows(written({"text": pyarrow.array(few, kind)}), ("text",))
    assert list(rows) == [{"text": each} for each in few]
    texts = repeated("x" * 2**20, 90)
    maps = pyarrow.MapArray.from_arrays(range(0, 91, 3), pyarrow.array(["bn"] * 90), texts)
    rows = parquet_rows(written({"text": maps}), ("text",))
    assert [next(rows) for _ in range(3)] == [{"text": [("bn", "x" * 2**20)] * 3}] * 3


def test_lists_of_numbers_are_refused_that_become_very_many() -> None:
    numbers = pyarrow.array(np.zeros(34_000_000, np.uint8))
    ids = pyarrow.ListArray.from_arrays(pyarrow.array([0, len(numbers)], pyarrow.int32()), numbers)
    file = written({"ids": ids}, use_dictionary=True)
    assert len(file.getvalue()) < 50_000
    with pytest.raises(Unusable, match=r"become \d+ MiB, for the column 'ids"):
        next(parquet_rows(file, ("ids",)))


def test_shards_of_tokens_are_read_by_the_same_rule(tmp_path: Path) -> None:
    numbers = pyarrow.array(np.zeros(34_000_000, np.uint8))
    columns = {
        TOKENS: pyarrow.ListArray.from_arrays(pyarrow.array([0, len(numbers)], pyarrow.int32()), numbers),
        SENTENCES: pyarrow.array([[len(numbers)]], pyarrow.list_(pyarrow.uint32())),
    }
    table = pyarrow.table(columns).replace_schema_metadata({VOCABULARY: b"hash"})
    path = tmp_path / "train.parquet"
    parquet.write_table(table, path, compression="zstd")
    with pytest.raises(UserError, match=rf"^{path} holds [\d,]+ bytes that become \d+ MiB, for the column 'tokens"):
        next(read_token_shard(Shard(str(path), "parquet"), "hash", 1000, pytest.fail))


def test_values_of_a_fixed_width_are_refused_that_are_nothing_but_width() -> None:
    file = written({"data": pyarrow.array([None] * 3, pyarrow.binary(2**28))})
    assert len(file.getvalue()) < 2000
    with pytest.raises(Unusable, match="a value of the column 'data'"):
        next(parquet_rows(file, ("data",)))


OPTIONS: dict[str, dict[str, Any]] = {
    "usual": {},
    "plain": {"use_dictionary": False},
    "v2": {"data_page_version": "2.0"},
    "small pages": {"data_page_size": 100, "write_batch_size": 10, "dictionary_pagesize_limit": 200},
    "unpacked": {"compression": "none"},
    "snappy": {"compression": "snappy"},
    "gzip": {"compression": "gzip"},
    "index": {"write_page_index": True, "write_page_checksum": True},
    "deltas": {"use_dictionary": False, "column_encoding": {"number": "DELTA_BINARY_PACKED"}},
}


def test_a_file_without_rows_is_read() -> None:
    assert list(parquet_rows(written({"text": pyarrow.array([], pyarrow.string())}), ("text",))) == []


@pytest.mark.parametrize("options", OPTIONS)
def test_whatever_writers_choose_is_read(options: str) -> None:
    rows: list[dict[str, Any]] = [
        {
            "text": f"text {number % 40}" if number % 9 else None,
            "number": number,
            "words": [f"{number % 50}", None] if number % 3 else None,
            "picture": {"bytes": bytes([number % 256]) * 50, "path": None},
            "nested": [[1], [], None, [number, 2]],
        }
        for number in range(700)
    ]
    table = pyarrow.Table.from_pylist(rows)
    file = io.BytesIO()
    parquet.write_table(table, file, row_group_size=300, **{"compression": "zstd"} | OPTIONS[options])
    for first in (0, 299, 300, 650, 700):
        assert list(parquet_rows(file, tuple(rows[0]), first)) == rows[first:]


def broken(content: bytes, begin: int, end: int) -> Iterator[bytes]:
    generator = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(generator.integers(1, 4)):
            changed[int(generator.integers(begin, end))] = int(generator.integers(256))
        yield bytes(changed)


@pytest.mark.parametrize("place", ["pages", "footer"])
def test_what_is_broken_is_told_and_no_fault_of_the_reader(place: str) -> None:
    content = written({"text": [f"text {number}" for number in range(50)]}, compression="none").getvalue()
    footer = parquet.ParquetFile(io.BytesIO(content)).metadata.row_group(0).column(0).total_compressed_size + 4
    begin, end = (4, footer) if place == "pages" else (footer, len(content) - 8)
    for changed in broken(content, begin, end):
        try:
            for row in parquet_rows(io.BytesIO(changed), ("text",)):
                assert isinstance(row, dict | BadRow)
        except (Unusable, OSError, UnicodeDecodeError, pyarrow.ArrowException):
            pass
