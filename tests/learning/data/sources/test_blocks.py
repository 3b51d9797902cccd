"""Documents in blocks: entered anywhere, the same for everybody, each once in a pass, whatever is lost."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sampler import PLACES
from dedloc_kit.learning.data.sources.blocks import Block, Blocks, Unread
from dedloc_kit.learning.data.sources.data_issues import Loss
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.stream import texts

STRETCH = 2048
"""Bytes; of the small files here some 20 to 40 documents."""


def fail(text: str) -> None:
    raise AssertionError(text)


def write(path: Path, values: list[Any], group: int = 100) -> Path:
    path.parent.mkdir(exist_ok=True)
    table = pyarrow.table({"text": values})
    parquet.write_table(table, path, row_group_size=group, compression="none", use_dictionary=False)
    return path


def write_files(folder: Path, files: int, rows: int) -> Source:
    for number in range(files):
        write(folder / f"{number}.parquet", document(number, rows))
    return Source(dataset=str(folder))


def document(file: int, rows: int) -> list[str]:
    return [f"{file} {row} {row:040}" for row in range(rows)]


def blocks(*sources: Source, seed: int = 0, warn: Warn = fail, checked: bool = True) -> Blocks:
    return Blocks(sources, texts, seed=seed, warn=warn, checked=checked, stretch=STRETCH)


def items(found: Iterator[Block], count: int) -> list[list[Any]]:
    return [block.items for block in islice(found, count)]


def a_pass(found: Iterator[Block], documents: int) -> list[Any]:
    """The documents of the first blocks, at least so many."""
    taken: list[Any] = []
    while len(taken) < documents:
        taken += next(found).items
    return taken


def test_a_block_is_the_same_whether_it_is_entered_or_reached_and_another_seed_or_number_makes_another(
    tmp_path: Path,
) -> None:
    source = write_files(tmp_path, files=3, rows=1000)
    reached = items(blocks(source).from_block(0), 5)
    assert items(blocks(source).from_block(3), 2) == reached[3:]
    assert blocks(source).again(4, None).items == reached[4]
    assert blocks(source, seed=1).block(4).items != reached[4]
    assert len({tuple(each) for each in reached}) == 5
    assert blocks(source).block(1).seed != blocks(source).block(2).seed


@pytest.mark.parametrize("checked", [True, False])
def test_a_pass_holds_each_document_once_and_the_next_one_too_in_another_order(tmp_path: Path, checked: bool) -> None:
    sizes = (700, 40, 1, 259)
    for number, rows in enumerate(sizes):
        write(tmp_path / f"{number}.parquet", document(number, rows), group=90)
    stream = blocks(Source(dataset=str(tmp_path)), checked=checked).from_block(0)
    first, second = a_pass(stream, sum(sizes)), a_pass(stream, sum(sizes))
    assert sorted(first) == sorted(second) == sorted(chain(*(document(n, rows) for n, rows in enumerate(sizes))))
    assert first != second


def test_a_block_holds_a_few_stretches_of_neighbours_shuffled(tmp_path: Path) -> None:
    source = write_files(tmp_path, files=6, rows=600)
    found = blocks(source).block(0).items
    numbers = [600 * int(text.split()[0]) + int(text.split()[1]) for text in found]
    runs = np.count_nonzero(np.diff(sorted(numbers)) > 1) + 1
    assert PLACES / 2 < runs <= PLACES
    assert np.count_nonzero(np.abs(np.diff(numbers)) == 1) < len(found) / 10, "they come in turns"


def test_sources_come_by_their_weights_whatever_their_sizes(tmp_path: Path) -> None:
    one = Source(dataset=str(write(tmp_path / "one.parquet", document(1, 3000))), weight=3.0)
    two = Source(dataset=str(write(tmp_path / "two.parquet", document(2, 700))))
    seen = Counter(text[0] for each in items(blocks(one, two).from_block(0), 64) for text in each)
    assert seen["2"] / seen.total() == pytest.approx(0.25, abs=0.03)


def test_weights_are_shares_of_tokens_where_the_files_hold_tokens(tmp_path: Path) -> None:
    def read(source: Source, shard: Any, warn: Warn) -> Iterator[Any]:
        table = parquet.read_table(shard.path)
        begin, end = (-(-table.num_rows * place // shard.part[2]) for place in shard.part[:2])
        return (
            (source.dataset[-9], len(each)) for each in table.slice(begin, end - begin).column("tokens").to_pylist()
        )

    sources = []
    for name, high in (("a", 2), ("b", 60_000)):  # of the same number of tokens, which become few bytes and many
        values = np.random.default_rng(1).integers(0, high, 200_000).astype(np.uint16)
        lists = pyarrow.ListArray.from_arrays(np.arange(0, 200_001, 100, dtype=np.int32), values)
        parquet.write_table(pyarrow.table({"tokens": lists}), tmp_path / f"{name}.parquet", compression="zstd")
        sources.append(Source(dataset=str(tmp_path / f"{name}.parquet"), tokenized=True))
    found = Blocks(sources, read, seed=0, warn=fail, stretch=STRETCH)
    seen: Counter[str] = Counter()
    for number in range(0, 64 * 128, 128):
        for name, tokens in found.block(number).items:
            seen[name] += tokens
    assert seen["a"] / seen.total() == pytest.approx(0.5, abs=0.05)


def test_files_of_all_kinds_are_read_once_in_a_pass_where_nobody_checks_and_refused_where_somebody_does(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in document(1, 900)))
    (tmp_path / "b.txt").write_text("\n\n".join(document(2, 300)))
    (tmp_path / "c.csv").write_text("\n".join(["text", *document(3, 500)]))
    with gzip.open(tmp_path / "d.jsonl.gz", "wt") as packed:
        packed.writelines(json.dumps({"text": text}) + "\n" for text in document(4, 700))
    write(tmp_path / "e.parquet", document(5, 200))
    expected = sorted(chain(*(document(n, rows) for n, rows in enumerate((900, 300, 500, 700, 200), start=1))))
    source = Source(dataset=str(tmp_path))
    stream = blocks(source, checked=False).from_block(0)
    counts = Counter(chain.from_iterable(items(stream, 128)))
    assert sorted(counts) == expected
    assert set(counts.values()) == {6, 7}, "eight places, and five files: some have been read once more"
    entered = blocks(source, checked=False)
    assert [entered.block(number).items for number in (3, 4)] == items(blocks(source, checked=False).from_block(3), 2)
    with pytest.raises(UserError, match=r"a\.jsonl cannot be read from the middle, .* Parquet, or write"):
        blocks(source)


def test_one_place_of_a_block_may_be_missing_is_told_and_is_left_out_by_who_reads_it_again(tmp_path: Path) -> None:
    source = write_files(tmp_path, files=12, rows=200)
    whole = {number: blocks(source).block(number).items for number in range(30)}
    broken = (tmp_path / "5.parquet").read_bytes()
    (tmp_path / "5.parquet").write_bytes(b"PAR1 this is not Parquet".ljust(len(broken)))
    told: list[str] = []
    here = blocks(source, warn=told.append)
    found = {block.number: block for block in islice(here.from_block(0), 20)}
    once = [block for block in found.values() if block.missing is not None]
    assert 0 < len(once) < len(found)
    for block in found.values():
        lost = set(whole[block.number]) - set(block.items)
        assert bool(lost) == (block.missing is not None)
        assert len(lost) < len(whole[block.number]) / 4, "one place at most"
    assert len([text for text in told if isinstance(text, Loss)]) == 1, "a file is told once"

    with pytest.raises(Unread, match=r"too many files of .* cannot be read"):
        here.again(once[0].number, None)
    (error,) = next(text.losses.unreadable for text in told if isinstance(text, Loss)).values()
    assert error.__traceback__ is None, "it would keep what was read"
    (tmp_path / "5.parquet").write_bytes(broken)
    again = blocks(source).again(once[0].number, once[0].missing)
    assert again.items == once[0].items
    assert blocks(source).again(once[0].number, None).items == whole[once[0].number]


def test_a_block_that_lacks_more_is_left_out_where_others_check_and_read_in_part_where_nobody_does(
    tmp_path: Path,
) -> None:
    source = write_files(tmp_path, files=6, rows=100)
    for number in range(3):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(b"PAR1 this is not Parquet".ljust(path.stat().st_size))
    told: list[str] = []
    with pytest.raises((Unread, UserError), match=r"too many files of .* cannot be read"):
        blocks(source, warn=told.append).block(0)
    stream = blocks(source, warn=told.append, checked=False).from_block(0)
    assert sorted(a_pass(stream, 300)) == sorted(chain(*(document(n, 100) for n in (3, 4, 5))))
    losses = [text.losses for text in told if isinstance(text, Loss)]
    assert len(losses[-1].unreadable) == 3


def test_data_of_which_nearly_nothing_can_be_read_is_given_up_with_the_reason(tmp_path: Path) -> None:
    source = write_files(tmp_path, files=4, rows=100)
    for number in range(4):
        (tmp_path / f"{number}.parquet").write_bytes(b"PAR1 this is not Parquet" * 1000)
    with pytest.raises(UserError, match=r"ArrowInvalid"):
        next(blocks(source, warn=lambda _: None).from_block(0))
    with pytest.raises(UserError, match=r"no file of the dataset .* can be read: ArrowInvalid"):
        next(blocks(source, warn=lambda _: None, checked=False).from_block(0))
    missing = write(tmp_path / "other.parquet", ["text"])
    with pytest.raises(UserError, match="no column 'words'"):
        next(blocks(Source(dataset=str(missing), column="words"), warn=lambda _: None).from_block(0))


def test_bad_rows_are_counted_once_however_often_they_are_read(tmp_path: Path) -> None:
    rows = [b"good"] * 2000
    rows[3], rows[1001] = b"\xff", b"\xfe"
    offsets, values = pyarrow.array(rows).buffers()[1:]
    column = pyarrow.Array.from_buffers(pyarrow.string(), len(rows), [None, offsets, values])
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "a.parquet")
    told: list[str] = []
    for each in items(blocks(Source(dataset=str(tmp_path)), warn=told.append).from_block(0), 9):
        assert set(each) == {"good"}
    (loss,) = told
    assert isinstance(loss, Loss)
    assert loss.losses.bad_rows == 2


def test_what_was_fetched_is_read_to_its_end_before_it_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row groups are loaded once, and once more where a chunk begins in the middle of one."""
    source = write_files(tmp_path, files=2, rows=4000)
    loaded: Counter[int] = Counter()
    whole = parquet.ParquetFile.iter_batches

    def told(self: Any, *args: Any, row_groups: Any, **how: Any) -> Any:
        loaded[row_groups[0]] += 1
        return whole(self, *args, row_groups=row_groups, **how)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", told)
    a_pass(blocks(source).from_block(0), 8000)
    assert loaded.total() < 2 * 80
