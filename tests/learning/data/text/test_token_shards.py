from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.blocks import Blocks
from dedloc_kit.learning.data.sources.open_files import OpenFiles
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.reading import metadata_of
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.text import token_shards
from dedloc_kit.learning.data.text.token_shards import read_token_shard, shard_path, write_token_shard
from dedloc_kit.learning.data.text.tokens import Document
from tests.flaky_files import far_files

HASH = "0123456789abcdef"


def fail(text: str) -> None:
    raise AssertionError(text)


def make(number: int) -> Iterator[Document]:
    generator = np.random.default_rng(0)
    for index in range(number):
        length = 0 if index == 3 else int(generator.integers(1, 90))
        ends = np.unique(np.append(generator.integers(1, length + 1, size=3), length)) if length else np.array([])
        ids = generator.integers(1000, size=length).astype(np.uint16)
        yield Document(ids, ends.astype(np.uint32))


def read(path: Path, vocabulary_hash: str = HASH, vocabulary: int = 1000) -> list[Document]:
    return list(read_token_shard(Shard(str(path), "parquet"), vocabulary_hash, vocabulary, fail))


def same(one: list[Document], other: list[Document]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.ends, b.ends) for a, b in zip(one, other, strict=True)
    )


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    documents = list(make(2600))
    path = shard_path(tmp_path, 0)
    assert write_token_shard(iter(documents), path, HASH, 1000) == (2600, sum(len(d.ids) for d in documents))
    assert [file.name for file in tmp_path.iterdir()] == ["train-00000.parquet"]
    assert same(read(path), documents)
    assert all(document.ids.dtype == np.uint16 and document.ids.base is None for document in read(path))


def test_a_row_group_has_a_bounded_number_of_tokens(tmp_path: Path) -> None:
    lengths = [2**16, 2**16, 1, 2**16, 2**17 + 5, 7] + [1] * 600
    documents = [Document(np.zeros(n, np.uint16), np.array([n], np.uint32)) for n in lengths]
    write_token_shard(documents, shard_path(tmp_path, 0), HASH, 1000)
    metadata = parquet.read_metadata(tmp_path / "train-00000.parquet")
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    tokens = [group.column(0).num_values for group in groups]
    assert [group.num_rows for group in groups] == [2, 2, 1, 500, 101]
    assert tokens == [2**17, 2**16 + 1, 2**17 + 5, 506, 101]
    assert same(read(tmp_path / "train-00000.parquet"), documents)


def test_a_file_that_could_not_be_finished_is_not_there(tmp_path: Path) -> None:
    def broken() -> Iterator[Document]:
        yield from make(600)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_token_shard(broken(), shard_path(tmp_path, 0), HASH, 1000)
    assert not list(tmp_path.iterdir())


def test_no_documents_make_no_file(tmp_path: Path) -> None:
    assert write_token_shard(iter([]), shard_path(tmp_path, 0), HASH, 1000) == (0, 0)
    assert not list(tmp_path.iterdir())


def test_reading_goes_on_where_the_line_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = list(make(1200))
    write_token_shard(iter(documents), shard_path(tmp_path, 0), HASH, 1000)
    monkeypatch.setattr("dedloc_kit.learning.data.sources.patience.RETRY_PAUSES", (0.01,))
    far, broken = far_files(tmp_path), 0
    for requests in range(30):
        far.break_after(requests)
        warnings = list[str]()
        shard = Shard("far:///train-00000.parquet", "parquet")
        assert same(list(read_token_shard(shard, HASH, 1000, warnings.append)), documents)
        broken += sum("the line is down" in warning for warning in warnings)
    assert broken > 3


def test_of_a_stretch_only_the_row_groups_are_read_that_hold_it(tmp_path: Path) -> None:
    documents = list(make(1200))
    write_token_shard(iter(documents), shard_path(tmp_path, 0), HASH, 1000)
    described = parquet.read_metadata(tmp_path / "train-00000.parquet")
    groups = [described.row_group(number) for number in range(described.num_row_groups)]
    bytes_of = [sum(g.column(c).total_compressed_size for c in range(2)) for g in groups]
    far, path = far_files(tmp_path), "far:///train-00000.parquet"
    for begin, end, of in ((0, 10, [0]), (450, 610, [0, 1]), (500, 1000, [1]), (1100, 1200, [2]), (1200, 1200, [])):
        part = Shard(path, "parquet", (begin, end, 1200), OpenFiles())
        assert metadata_of(part, fail).num_rows == 1200
        before, wanted = far.fetched, sum(bytes_of[group] for group in of)
        assert same(list(read_token_shard(part, HASH, 1000, fail)), documents[begin:end])
        assert wanted <= far.fetched - before <= wanted + min(bytes_of) / 2


def test_a_pass_begins_at_a_drawn_document_and_holds_each_once(tmp_path: Path) -> None:
    documents = list(make(1200))
    write_token_shard(iter(documents), shard_path(tmp_path, 0), HASH, 1000)
    place = {document.ids.tobytes(): number for number, document in enumerate(documents)}
    source = Source(dataset=str(tmp_path), tokenized=True)

    def reader(_: Source, shard: Shard, warn: Warn) -> Iterator[Document]:
        return read_token_shard(shard, HASH, 1000, warn)

    begun = set()
    for seed in range(3):
        blocks = Blocks([source], reader, seed=seed, warn=fail, stretch=2048).from_block(0)
        found = list[int]()
        while len(found) < len(documents):
            found += [place[document.ids.tobytes()] for document in next(blocks).items]
        assert sorted(found) == sorted(place.values())
        begun.add(found[0])
    assert len(begun) == 3


def test_the_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    write_token_shard(make(10), shard_path(tmp_path, 0), HASH, 1000)
    with pytest.raises(UserError, match=r"train-00000\.parquet was written with another tokenizer"):
        read(tmp_path / "train-00000.parquet", vocabulary_hash="other")


def test_a_file_without_tokens_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["River."]}), tmp_path / "text.parquet")
    with pytest.raises(UserError, match=r"text\.parquet has no columns 'tokens' and 'sentences'"):
        read(tmp_path / "text.parquet")


@pytest.mark.parametrize(
    ("ids", "ends", "reason"),
    [
        ([[1, 2000]], [[2]], "cannot be"),  # an id beyond the vocabulary
        ([[1, 2]], [[3]], "cannot be"),
        ([[1, 2]], [[1]], "cannot be"),
        ([[1, 2]], [[2, 1, 2]], "cannot be"),
        ([[1, 2], [3]], [[2], []], "cannot be"),
        ([[1, 2]], [[0, 2]], "cannot be"),
        ([[1, None]], [[2]], "empty values"),
        ([[1, 2], None], [[2], [1]], "empty values"),
    ],
)
def test_lies_in_a_file_are_refused(tmp_path: Path, ids: object, ends: object, reason: str) -> None:
    columns = {
        "tokens": pyarrow.array(ids, pyarrow.list_(pyarrow.uint16())),
        "sentences": pyarrow.array(ends, pyarrow.list_(pyarrow.uint32())),
    }
    table = pyarrow.table(columns).replace_schema_metadata({token_shards.VOCABULARY: HASH})
    parquet.write_table(table, tmp_path / "lies.parquet")
    with pytest.raises(UserError, match=rf"lies\.parquet.*{reason}"):
        read(tmp_path / "lies.parquet")
