"""Documents without end and once, and what is read ahead."""

import gzip
import json
import threading
import time
from collections.abc import Container, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pytest
from fsspec.implementations.local import LocalFileSystem
from pyarrow import parquet

from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources import patience
from dedloc_kit.learning.data.sources.reading import read_shard
from dedloc_kit.learning.data.sources.shards import Shard, find_shards
from dedloc_kit.learning.data.sources.stream import Prefetch, documents, in_order, texts


def no_warning(text: str) -> None:
    raise AssertionError(text)


def write_parquet(path: Path, values: list[object], column: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table({"id": list(range(len(values))), column: values}), path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three training shards of ten documents each and one test shard, as the Hub lays them out."""
    for number in range(3):
        write_parquet(tmp_path / f"data/train-{number:05d}-of-00003.parquet", [f"{number}-{i}" for i in range(10)])
    write_parquet(tmp_path / "data/test-00000-of-00001.parquet", ["held out"])
    return tmp_path


def take(number: int, *sources: Source, seed: int = 0) -> list[str]:
    return list(islice(documents(sources, seed=seed, warn=no_warning), number))


def test_the_same_seed_gives_the_same_order_and_another_seed_another(folder: Path) -> None:
    source = Source(dataset=str(folder))
    assert take(20, source, seed=1) == take(20, source, seed=1)
    assert take(20, source, seed=1) != take(20, source, seed=2)


def test_sessions_that_end_soon_read_more_than_the_heads_of_files(folder: Path) -> None:
    source = Source(dataset=str(folder))
    assert len({text for seed in range(40) for text in take(4, source, seed=seed)}) == 30


def test_what_comes_before_the_place_where_a_file_breaks_off_is_read_wherever_it_is_begun(tmp_path: Path) -> None:
    rows = [f"{row:0100}" for row in range(60)]
    file = tmp_path / "cut.parquet"
    parquet.write_table(
        pyarrow.table({"text": rows}), file, row_group_size=20, compression="none", use_dictionary=False
    )
    start = parquet.ParquetFile(file).metadata.row_group(1).column(0).data_page_offset
    content = file.read_bytes()
    file.write_bytes(content[:start] + b"\xff" * 40 + content[start + 40 :])
    for seed in range(6):
        told: list[str] = []
        stream = documents([Source(dataset=str(file))], seed=seed, warn=told.append)
        assert {int(text) for text in islice(stream, 8 * 20)} == set(range(20))
        assert len(told) == 1
        assert "1 of 1 files" in told[0]


def test_a_split_takes_only_its_own_files_and_a_missing_one_names_those_there_are(folder: Path) -> None:
    assert set(take(5, Source(dataset=str(folder), split="test"))) == {"held out"}
    with pytest.raises(UserError, match=r"no split 'validation'.*test, train"):
        take(1, Source(dataset=str(folder), split="validation"))


def test_files_that_name_no_split_are_training_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from text\n\n  \n", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "from json"}) + "\n", encoding="utf-8")
    with gzip.open(tmp_path / "c.jsonl.gz", "wt", encoding="utf-8") as packed:
        packed.write(json.dumps({"text": "from gzip"}) + "\n")
    write_parquet(tmp_path / "trainees.parquet", ["from parquet", None, " "])
    (tmp_path / "README.md").write_text("not data", encoding="utf-8")
    assert set(take(20, Source(dataset=str(tmp_path)))) == {"from text", "from json", "from gzip", "from parquet"}


def test_a_path_may_hold_the_characters_of_a_pattern(tmp_path: Path) -> None:
    odd = write_parquet(tmp_path / "run[1]*" / "a?.parquet", ["found"])
    assert take(2, Source(dataset=str(odd.parent))) == ["found", "found"]


@pytest.mark.parametrize("name", ["two words", "a#b", "100%41", "\u09ac\u0987", "a:b", "a::b", "it's"])
def test_a_path_may_hold_what_addresses_give_a_meaning_to(tmp_path: Path, name: str) -> None:
    odd = write_parquet(tmp_path / name / f"{name}.parquet", ["found"])
    assert take(2, Source(dataset=str(odd.parent))) == ["found", "found"]


def test_an_unreadable_shard_is_left_out_and_named_once(folder: Path) -> None:
    broken = folder / "data/train-00001-of-00003.parquet"
    broken.write_bytes(b"PAR1 this is not Parquet")
    warnings: list[str] = []
    stream = documents([Source(dataset=str(folder))], seed=0, warn=warnings.append)
    assert {text[0] for text in islice(stream, 50)} == {"0", "2"}
    assert len(warnings) == 1
    assert str(broken) in warnings[0]


def test_blank_documents_are_left_out_and_long_ones_are_whole(tmp_path: Path) -> None:
    long = "এক দীর্ঘ কাহিনি " * 100_000
    path = tmp_path / "mixed.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["", " \n\t", "\u2003", long, None, "short"]))
    assert sorted(take(16, Source(dataset=str(path)))) == sorted([long, "short"] * 8), "each place has read all of it"


NOT_UTF8 = b"\xff\xfe"


def write_invalid(path: Path) -> Path:
    """A file of its kind with the texts `first`, one that is not UTF-8, and `last`."""
    if path.suffix == ".parquet":
        offsets, values = pyarrow.array([b"first", NOT_UTF8, b"last"]).buffers()[1:]
        column = pyarrow.Array.from_buffers(pyarrow.string(), 3, [None, offsets, values])
        parquet.write_table(pyarrow.table({"text": column}), path)
    elif path.suffix == ".txt":
        path.write_bytes(b"first\n\n" + NOT_UTF8 + b"\n\nlast\n")
    else:
        rows = [b'{"text": "' + text + b'"}' for text in (b"first", NOT_UTF8, b"last")]
        path.write_bytes(b"\n".join(rows) if path.suffix == ".jsonl" else b"[" + b",".join(rows) + b"]")
    return path


@pytest.mark.parametrize("name", ["bad.txt", "bad.jsonl", "bad.json", "bad.parquet"])
def test_bytes_that_are_not_utf8_cost_their_row_which_is_named(tmp_path: Path, name: str) -> None:
    bad = write_invalid(tmp_path / name)
    warnings: list[str] = []
    stream = documents([Source(dataset=str(bad))], seed=0, warn=warnings.append)
    assert sorted(islice(stream, 64)) == ["first"] * 32 + ["last"] * 32
    assert len(warnings) == 1, "and once, however many passes there are"
    assert warnings[0].startswith(f"row 2 of {bad} is left out: it is not UTF-8")
    assert list(in_order(Source(dataset=str(bad)), texts, warn=lambda _: None)) == ["first", "last"]


def test_a_source_without_a_readable_shard_is_the_users_to_mend(folder: Path) -> None:
    for path in folder.glob("data/train-*"):
        path.write_bytes(b"broken")
    stream = documents([Source(dataset=str(folder))], seed=0, warn=lambda text: None)
    with pytest.raises(UserError, match=f"no file of the dataset {folder} can be read"):
        next(stream)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("/nowhere/at/all", "does not exist; correct the path"),
        ("./nowhere", "is not on the Hub"),
        ("nowhere", r"is not on the Hub, where it is OWNER/NAME; if you have a copy, name it with --data NAME=PATH"),
    ],
)
def test_a_dataset_that_does_not_exist_is_refused_at_once(name: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        documents([Source(dataset=name)], seed=0, warn=no_warning)


def test_an_empty_folder_and_an_unknown_kind_of_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no data"):
        find_shards(Source(dataset=str(tmp_path)), no_warning)
    (tmp_path / "model.pkl").write_bytes(b"")
    with pytest.raises(UserError, match="none of the known kinds"):
        find_shards(Source(dataset=str(tmp_path / "model.pkl")), no_warning)


def test_a_missing_column_names_the_columns_there_are(folder: Path) -> None:
    stream = documents([Source(dataset=str(folder), column="body")], seed=0, warn=lambda _: None)
    with pytest.raises(UserError, match=r"no column 'body'.*id, text"):
        next(stream)


@pytest.mark.parametrize(
    ("value", "kind"), [(3, "int"), ({"en": "nested"}, "dict"), (["a list"], "list"), (b"bytes", "bytes")]
)
def test_a_shard_without_text_is_left_out_and_refused_if_there_is_no_other(
    tmp_path: Path, value: object, kind: str
) -> None:
    write_parquet(tmp_path / "good.parquet", ["good"], column="body")
    wrong = write_parquet(tmp_path / "wrong.parquet", [value], column="body")
    reason = f"{wrong} has no usable row among 1: row 1 holds {kind}, not text, in the column 'body'"
    warnings: list[str] = []
    stream = documents([Source(dataset=str(tmp_path), column="body")], seed=0, warn=warnings.append)
    assert list(islice(stream, 9)) == ["good"] * 9
    assert "1 of 2 files" in warnings[-1]
    assert reason in warnings[-1]
    alone = Source(dataset=str(wrong), column="body")
    with pytest.raises(UserError, match=reason):
        next(documents([alone], seed=0, warn=warnings.append))
    with pytest.raises(UserError, match=reason):
        list(in_order(alone, texts, warn=warnings.append))


def test_a_column_without_any_text_does_not_read_for_ever(tmp_path: Path) -> None:
    for values in (["", " ", None], [None, None]):
        blank = write_parquet(tmp_path / "blank.parquet", list(values))
        with pytest.raises(UserError, match=f"the column 'text' of {blank} is empty"):
            take(1, Source(dataset=str(blank)))


def test_the_first_documents_come_in_the_order_of_the_files(folder: Path) -> None:
    first = list(islice(in_order(Source(dataset=str(folder)), texts, warn=no_warning), 12))
    assert first == [f"0-{i}" for i in range(10)] + ["1-0", "1-1"]


def test_the_first_documents_of_an_unreadable_shard_are_refused(folder: Path) -> None:
    (folder / "data/test-00000-of-00001.parquet").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"test-00000-of-00001\.parquet cannot be read"):
        list(islice(in_order(Source(dataset=str(folder), split="test"), texts, warn=no_warning), 12))


class FlakyFileSystem(LocalFileSystem):
    """Local files over a line that breaks at the calls of open and read whose numbers are in `broken`."""

    protocol = "flaky"
    folder = Path()
    calls = 0
    broken: Container[int] = ()

    @classmethod
    def call(cls) -> None:
        cls.calls += 1
        if cls.calls in cls.broken:
            raise ConnectionError("the line is down")

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.call()
        file = super()._open(str(self.folder / Path(path).name), mode, **options)
        read = file.f.readinto

        def flaky_read(*arguments: Any) -> Any:
            self.call()
            return read(*arguments)

        file.readinto = flaky_read
        return file


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shard:
    """25 lines of half a megabyte, which are read in many portions."""
    path = tmp_path / "shard.jsonl"
    path.write_text("".join(json.dumps({"text": f"{number:524288}"}) + "\n" for number in range(25)), encoding="utf-8")
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    monkeypatch.setattr(FlakyFileSystem, "folder", tmp_path)
    monkeypatch.setattr(FlakyFileSystem, "calls", 0)
    monkeypatch.setattr(patience, "RETRY_PAUSES", (0.01, 0.01, 0.01))
    return Shard(f"flaky://{path}", "json")


def test_a_network_error_is_announced_and_reading_goes_on_where_it_stopped(
    flaky: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    read_when_announced: list[int] = []
    announced: list[str] = []

    def warn(text: str) -> None:
        announced.append(text)
        read_when_announced.append(len(rows))

    for _ in read_shard(flaky, "text", no_warning):
        pass
    # Once more, with an error at the start and one at the last read of all.
    monkeypatch.setattr(FlakyFileSystem, "broken", {FlakyFileSystem.calls + 1, 2 * FlakyFileSystem.calls})
    for text in read_shard(flaky, "text", warn):
        rows.append(int(text))
    assert rows == list(range(25))
    assert read_when_announced[0] == 0 < read_when_announced[1]
    assert len(announced) == 2
    assert all(flaky.path in text and "trying again in 0.01 s (1 of 3)" in text for text in announced)


def test_a_network_error_that_stays_is_raised(flaky: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FlakyFileSystem, "broken", range(1000))
    announced: list[str] = []
    with pytest.raises(ConnectionError):
        list(read_shard(flaky, "text", announced.append))
    assert len(announced) == 3


def counting(made: list[int]) -> Iterator[int]:
    for number in count():
        made.append(number)
        yield number


def wait_until(made: list[int], length: int) -> None:
    deadline = time.monotonic() + 30
    while len(made) < length and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(made) >= length


def test_prefetching_keeps_the_order_and_stays_within_its_bound() -> None:
    made: list[int] = []
    with Prefetch(counting(made), size=3) as ahead:
        wait_until(made, 4)  # three are ready, the fourth is in hand
        assert list(islice(ahead, 5)) == [0, 1, 2, 3, 4]
        wait_until(made, 9)
    assert len(made) == 9


def test_closing_ends_the_thread_although_the_queue_is_full() -> None:
    before = threading.active_count()
    made: list[int] = []
    ahead = Prefetch(counting(made), size=2)
    wait_until(made, 3)
    ahead.close()
    assert threading.active_count() == before
    assert list(ahead) == []


def test_an_error_reaches_the_consumer_after_the_items_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise UserError("no more")

    with Prefetch(failing(), size=4) as ahead:
        assert next(ahead) == 1
        with pytest.raises(UserError, match="no more"):
            next(ahead)


def test_prefetching_a_finite_iterator_ends() -> None:
    with Prefetch(iter([1, 2, 3]), size=1) as ahead:
        assert list(ahead) == [1, 2, 3]
