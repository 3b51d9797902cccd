"""Parts of files: what is read of one, in whatever order, is what stands there, and no more is fetched than that."""

import gzip
import json
from itertools import chain
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from dedloc_kit.learning.data.sampler import STRETCH
from dedloc_kit.learning.data.sources import patience
from dedloc_kit.learning.data.sources.open_files import OpenFiles
from dedloc_kit.learning.data.sources.reading import metadata_of, read_shard, sizes_of
from dedloc_kit.learning.data.sources.shards import Shard
from tests.flaky_files import FarFiles, far_files

VALUES = [f"{row:050}" for row in range(3000)]


def fail(text: str) -> None:
    raise AssertionError(text)


def write(path: Path, group: int = 700) -> Path:
    parquet.write_table(pyarrow.table({"text": VALUES}), path, row_group_size=group, compression="none")
    return path


@pytest.mark.parametrize("open_", [True, False])
def test_rows_of_a_parquet_file_are_those_of_the_whole_file_in_whatever_order_they_are_read(
    tmp_path: Path, open_: bool
) -> None:
    path = str(write(tmp_path / "a.parquet"))
    files = OpenFiles() if open_ else None
    for begin, end in ((0, 90), (90, 180), (650, 1500), (180, 181), (1500, 3000), (2990, 3000), (3000, 3000), (0, 5)):
        part = Shard(path, "parquet", (begin, end, 3000), files)
        assert list(read_shard(part, "text", fail)) == VALUES[begin:end]


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "txt", "csv"])
def test_the_parts_of_a_file_that_is_read_from_its_beginning_hold_each_row_once_entered_or_reached(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"a.{kind}"
    rows = "".join(json.dumps({"text": value}) + "\n" for value in VALUES)
    content = {"txt": "\n\n".join(VALUES), "csv": "\n".join(["text", *VALUES])}.get(kind, rows).encode()
    path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    loader, size = {"jsonl": "json", "jsonl.gz": "json", "txt": "text"}.get(kind, "csv"), path.stat().st_size
    parts = [(size * number // 5, size * (number + 1) // 5, size) for number in range(5)]
    files = OpenFiles()
    found = [list(read_shard(Shard(str(path), loader, part=part, files=files), "text", fail)) for part in parts]
    assert list(chain(*found)) == VALUES
    assert kind.endswith("gz") or sum(map(bool, found)) == 5, "what is packed comes in larger portions"
    for number in (4, 1, 3):
        part = Shard(str(path), loader, part=parts[number], files=OpenFiles())
        assert list(read_shard(part, "text", fail)) == found[number]


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FarFiles:
    monkeypatch.setattr(patience, "RETRY_PAUSES", (0.01, 0.01))
    return far_files(tmp_path)


def test_no_more_is_fetched_than_the_row_groups_that_hold_what_is_read_and_that_once(
    tmp_path: Path, far: FarFiles
) -> None:
    write(tmp_path / "a.parquet", group=500)
    shard = Shard("far:///a.parquet", "parquet", files=OpenFiles())
    described = parquet.ParquetFile(tmp_path / "a.parquet").metadata
    group = described.row_group(3).column(0).total_compressed_size
    assert sizes_of([shard], fail) == ((tmp_path / "a.parquet").stat().st_size,)
    assert metadata_of(shard, fail).num_rows == 3000
    about_itself = far.fetched
    for begin in range(1500, 2000, 50):
        part = Shard(shard.path, "parquet", (begin, begin + 50, 3000), shard.files)
        assert list(read_shard(part, "text", fail)) == VALUES[begin : begin + 50]
    assert group <= far.fetched - about_itself < group + 200
    assert STRETCH > 2**16


def test_a_line_that_breaks_costs_nothing(tmp_path: Path, far: FarFiles) -> None:
    write(tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": value}) + "\n" for value in VALUES))
    size, told = (tmp_path / "b.jsonl").stat().st_size, list[str]()
    files = OpenFiles()
    for requests in range(3, 9):
        far.break_after(requests)
        part = Shard("far:///a.parquet", "parquet", (650, 2500, 3000), files)
        assert list(read_shard(part, "text", told.append)) == VALUES[650:2500]
        files.close()
    assert told
    whole = Shard("far:///b.jsonl", "json", part=(0, size, size), files=OpenFiles())
    far.break_after(1)
    assert list(read_shard(whole, "text", told.append)) == VALUES


def test_places_that_stand_at_the_same_row_each_read_on_and_fetch_nothing_again(tmp_path: Path, far: FarFiles) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(
        gzip.compress("".join(json.dumps({"text": value}) + "\n" for value in VALUES).encode(), 0)
    )
    size, files = (tmp_path / "a.jsonl.gz").stat().st_size, OpenFiles()
    for begin in range(4):
        for _ in range(3):
            part = Shard("far:///a.jsonl.gz", "json", (size * begin // 4, size * (begin + 1) // 4, size), files)
            assert list(read_shard(part, "text", fail))
    assert far.fetched <= 3 * 1.1 * size
