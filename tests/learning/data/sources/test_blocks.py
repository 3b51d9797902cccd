"""Documents in blocks: entered anywhere, the same for everybody, alike in how often each document comes."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.blocks import PLACES, STRETCH, Block, Blocks, Unread
from dedloc_kit.learning.data.sources.losses import Loss
from dedloc_kit.learning.data.sources.shards import Shard, Warn, count_rows, read_shard
from dedloc_kit.learning.data.sources.stream import texts
from dedloc_kit.run.task import Source


def fail(text: str) -> None:
    raise AssertionError(text)


def write(path: Path, values: list[Any], group: int = 100) -> Path:
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.table({"text": values}), path, row_group_size=group)
    return path


def write_files(folder: Path, files: int, rows: int) -> Source:
    for number in range(files):
        write(folder / f"{number}.parquet", [f"{number} {row}" for row in range(rows)])
    return Source(dataset=str(folder))


def blocks(*sources: Source, seed: int = 0, warn: Warn = fail) -> Blocks:
    return Blocks(sources, texts, seed=seed, warn=warn)


def items(found: Iterator[Block], count: int) -> list[list[Any]]:
    return [block.items for block in islice(found, count)]


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


def test_a_block_holds_a_few_stretches_of_neighbours_shuffled(tmp_path: Path) -> None:
    source = write_files(tmp_path, files=3, rows=10 * STRETCH)
    found = blocks(source).block(0).items
    assert len(found) == PLACES * STRETCH
    stretches = Counter((text.split()[0], int(text.split()[1]) // STRETCH) for text in found)
    assert len(stretches) > PLACES / 2
    assert all(count % STRETCH == 0 for count in stretches.values())
    assert len({text.split()[0] for text in found[:20]}) > 1, "they come in turns, not one after the other"


def test_each_document_of_a_file_comes_as_often_those_at_its_ends_too_and_sources_by_their_weights(
    tmp_path: Path,
) -> None:
    rows = 2 * STRETCH + 7
    one = Source(dataset=str(write(tmp_path / "one.parquet", [f"one {row}" for row in range(rows)])), weight=3.0)
    two = Source(dataset=str(write(tmp_path / "two.parquet", ["two"] * STRETCH)))
    seen: Counter[str] = Counter()
    for each in items(blocks(one, two).from_block(0), 60):
        seen.update(each)
    of_one = [seen[f"one {row}"] for row in (0, STRETCH, rows - 1)]
    assert min(of_one) > 0.75 * max(of_one), "of 480 places 360 are of this source, 120 in each stretch"
    assert 0.2 < seen["two"] / STRETCH / (60 * PLACES) < 0.3


def test_a_stretch_in_the_middle_of_a_file_is_that_of_the_whole_file(tmp_path: Path) -> None:
    values = [f"{row}" for row in range(700)]
    files = [write(tmp_path / "a.parquet", values), tmp_path / "b.jsonl", tmp_path / "c.txt", tmp_path / "d.csv"]
    files[1].write_text("".join(json.dumps({"text": value}) + "\n" for value in values))
    files[2].write_text("\n\n".join(values))
    files[3].write_text("\n".join(["text", *values]))
    for file, loader in zip(files, ("parquet", "json", "text", "csv"), strict=True):
        for begin in (0, 100, 250, 640, 800):
            part = Shard(str(file), loader, range(begin, begin + 90))
            assert list(read_shard(part, "text", fail)) == values[begin : begin + 90], (loader, begin)


def test_of_a_parquet_file_only_the_row_groups_are_read_that_hold_the_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    whole = parquet.ParquetFile

    class Told(whole):  # type: ignore[misc, valid-type]
        def iter_batches(self, *args: Any, row_groups: Any, **how: Any) -> Any:
            read.append(row_groups[0])
            return super().iter_batches(*args, row_groups=row_groups, **how)

    monkeypatch.setattr(parquet, "ParquetFile", Told)
    file = write(tmp_path / "a.parquet", [str(row) for row in range(1000)], group=50)
    assert next(read_shard(Shard(str(file), "parquet", range(760, 800)), "text", fail)) == "760"
    assert read == [15]


def test_a_line_that_breaks_within_a_stretch_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [str(row) for row in range(3000)]
    file = write(tmp_path / "a.parquet", values, group=700)
    whole, breaks, told = parquet.ParquetFile.iter_batches, [800, 1600], list[str]()

    def shaky(self: Any, *args: Any, **how: Any) -> Iterator[Any]:
        for batch in whole(self, *args, **how):
            yield batch
            if breaks and int(batch.column(0)[-1].as_py()) >= breaks[0]:
                raise ConnectionError(f"cut at {breaks.pop(0)}")

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", shaky)
    monkeypatch.setattr("dedloc_kit.learning.data.sources.shards.RETRY_PAUSES", (0.01,))
    assert list(read_shard(Shard(str(file), "parquet", range(650, 2500)), "text", told.append)) == values[650:2500]
    assert len(told) == 2


def test_one_place_of_a_block_may_be_missing_is_told_and_is_left_out_by_who_reads_it_again(tmp_path: Path) -> None:
    source = write_files(tmp_path, files=12, rows=STRETCH)
    whole = {number: blocks(source).block(number).items for number in range(30)}
    broken = (tmp_path / "5.parquet").read_bytes()
    (tmp_path / "5.parquet").write_bytes(b"PAR1 this is not Parquet")
    told: list[str] = []
    here = blocks(source, warn=told.append)
    found = {block.number: block for block in islice(here.from_block(0), 20)}
    once = [block for block in found.values() if block.missing is not None]
    assert once
    assert len(once) < len(found)
    for block in found.values():
        lost = [text for text in whole[block.number] if text.startswith("5 ")]
        assert len(lost) == (0 if block.missing is None else STRETCH), "one place at most"
        assert sorted(block.items + lost) == sorted(whole[block.number])
    twice = [number for number in range(max(found)) if number not in found]
    assert twice, "blocks of which two places are gone are left out as a whole"
    with pytest.raises(Unread, match=r"too many files of .* cannot be read"):
        here.block(twice[0])
    assert len([text for text in told if isinstance(text, Loss)]) == 1, "a file is told once"

    with pytest.raises(Unread):
        here.again(once[0].number, None)
    (tmp_path / "5.parquet").write_bytes(broken)
    again = blocks(source).again(once[0].number, once[0].missing)
    assert again.items == once[0].items
    assert blocks(source).again(once[0].number, None).items == whole[once[0].number]


def test_data_of_which_nearly_nothing_can_be_read_is_given_up_with_the_reason(tmp_path: Path) -> None:
    source = write_files(tmp_path, files=4, rows=10)
    for number in range(4):
        (tmp_path / f"{number}.parquet").write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(UserError, match=r"too many files of .* cannot be read: ArrowInvalid"):
        next(blocks(source, warn=lambda _: None).from_block(0))
    missing = write(tmp_path / "other.parquet", ["text"])
    with pytest.raises(UserError, match="no column 'words'"):
        next(blocks(Source(dataset=str(missing), column="words"), warn=lambda _: None).from_block(0))


def test_what_cannot_be_read_from_the_middle_is_refused_where_it_would_be_downloaded_whole() -> None:
    with pytest.raises(UserError, match=r"convert it to Parquet, or write its tokens"):
        count_rows(Shard("hf://datasets/a/b/c.jsonl.gz", "json"), fail)


def test_bad_rows_are_counted_once_however_often_they_are_read(tmp_path: Path) -> None:
    rows = [json.dumps({"text": "good"})] * (2 * STRETCH)
    rows[3], rows[STRETCH + 1] = "{", "[]"
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    told: list[str] = []
    for each in items(blocks(Source(dataset=str(tmp_path)), warn=told.append).from_block(0), 5):
        assert set(each) == {"good"}
        assert len(each) <= PLACES * (STRETCH - 1)
    (loss,) = told
    assert isinstance(loss, Loss)
    assert loss.losses.bad_rows == 2
