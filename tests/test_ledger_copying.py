"""A ledger that travels: exactly what it was, or a sentence that says why not."""

import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.ledger import Conviction, Ledger, StartPoint, SuiteScore
from dedloc_kit.ledger.copying import restore, write_copy
from dedloc_kit.records.contributors import MAX_LEDGER_BYTES
from dedloc_kit.records.evaluation import Evaluation, Picture
from tests.ledgers import GAP, NOON, a_step, given
from tests.peak import Peak

Change = Callable[[pa.Table], pa.Table]
ANOTHER_LIST = b"PK\5\6" + bytes(16) + b"\1\0"
"""At the end of an archive, which says that no files are in it."""


def everything(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables."""
    with sqlite3.connect(path) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    connection.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with a history: two people, a rewind, and evaluations."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in (1, 2, 3):
        ledger.record_step(a_step(step), {"12D3KooAsha": given(step, 10, 10 * step)})
    ledger.record_step(a_step(3, way="b"), {"12D3KooAsha": given(3, 10, 50), "12D3KooBina": given(3, 7, 7)})
    ledger.record_step(a_step(4, loss=None), {"12D3KooBina": given(4, 3, 10, name="বীণা")})
    pictures = (Picture(pixels=bytes(3)),)
    ledger.record_evaluation(
        0, Evaluation(loss=-9.5, metrics={"accuracy": 0.25}, samples=(GAP,), pictures=pictures), 1000.0
    )
    ledger.record_start(StartPoint("ours-0123456789abcdef", "us/model", 4.5))
    ledger.record_suites([SuiteScore("accuracy of belebele_ukr_Cyrl", "them/other", 0, NOON, 900, 0.4, None)])
    convictions = [Conviction(f"12D3KooC{number}", NOON, "Cy", "lied") for number in range(2)]
    ledger.record_convictions(convictions)
    bina = Conviction("12D3KooBina", NOON, "Bina", "lied", last_passed=3)
    ledger.record_convictions([*convictions[1:], bina])
    ledger.close()
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def copy(path: Path, tmp_path: Path) -> Path:
    write_copy(path, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    Ledger(tmp_path / "new" / "ledger.sqlite").close()
    return tmp_path / "new" / "ledger.sqlite"


def changed(file: Path, change: Change) -> None:
    table = parquet.read_table(file)
    parquet.write_table(change(table).replace_schema_metadata(table.schema.metadata), file)


def with_value(column: str, value: object) -> Change:
    """The first row says this."""

    def change(table: pa.Table) -> pa.Table:
        values = [value, *table[column].to_pylist()[1:]]
        return table.set_column(table.schema.get_field_index(column), column, pa.array(values))

    return change


def test_a_restored_ledger_is_the_one_that_was_copied_and_goes_on_like_it(path: Path, copy: Path, empty: Path) -> None:
    restore(empty, copy)
    assert everything(empty) == everything(path)
    for each in (path, empty):
        ledger = Ledger(each, clock=lambda: NOON)
        ledger.record_step(a_step(5), {"12D3KooAsha": given(5, 5, 55), "12D3KooBina": given(5, 2, 2, session="b2")})
        ledger.close()
    assert everything(empty) == everything(path)


def test_a_copy_in_an_archive_is_as_good_unless_it_would_unpack_to_too_much(
    copy: Path, path: Path, empty: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "ledger.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for file in copy.iterdir():
            opened.write(file, file.name)
    restore(empty, archive)
    assert everything(empty) == everything(path)
    with zipfile.ZipFile(archive, "a") as opened:
        opened.writestr("x", "")
        opened.getinfo("x").file_size = MAX_LEDGER_BYTES
    for bad, fault in ((archive.read_bytes(), "is too large"), (b"PK" * 100, "cannot be read")):
        archive.write_bytes(bad)
        with pytest.raises(UserError, match=f"ledger.zip {fault}"):
            restore(empty, archive)


@pytest.mark.parametrize("case", ["many", "another compression", "another list"])
def test_an_archive_whose_list_or_compression_would_take_memory_is_not_read(
    copy: Path, empty: Path, tmp_path: Path, case: str
) -> None:
    before, archive = everything(empty), tmp_path / "ledger.zip"
    with zipfile.ZipFile(
        archive, "w", zipfile.ZIP_LZMA if case == "another compression" else zipfile.ZIP_STORED
    ) as new:
        for file in copy.iterdir():
            new.write(file, file.name)
        for number in range(1000 if case == "many" else 0):
            new.writestr(f"{number:050}", "")
        new.comment = ANOTHER_LIST if case == "another list" else b""
    with pytest.raises(UserError, match=r"ledger\.zip cannot be read"):
        restore(empty, archive)
    assert everything(empty) == before


def test_a_restored_ledger_forgets_what_it_held_before(copy: Path, path: Path, empty: Path) -> None:
    ledger = Ledger(empty)
    ledger.record_step(a_step(9), {"12D3KooEmil": given(9, 10, 10)})
    ledger.close()
    restore(empty, copy)
    assert everything(empty) == everything(path)


def test_a_large_ledger_travels_in_batches(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.ledger.tables.BATCH_ROWS", 2)
    write_copy(path, tmp_path / "copy")
    assert parquet.ParquetFile(tmp_path / "copy" / "contributions.parquet").num_row_groups == 3


@pytest.mark.parametrize(
    ("file", "change", "fault"),
    [
        ("steps", with_value("samples", -1), "steps.parquet holds what cannot be a 'samples'"),
        ("steps", with_value("samples", 2**60), "holds what cannot be a 'samples'"),
        ("steps", with_value("time", float("nan")), "holds what cannot be a 'time'"),
        ("steps", with_value("loss", float("inf")), "holds what cannot be a 'loss'"),
        ("steps", with_value("round", "x'; DROP TABLE steps"), "holds what cannot be a 'round'"),
        ("steps", with_value("step", None), "lacks values in 'step'"),
        ("steps", with_value("step", 2), "steps.parquet cannot be read"),  # twice
        ("steps", lambda table: table.set_column(2, "time", table["round"]), "has the column 'time' of another type"),
        ("steps", with_value("left_out", '{"count": 0, "some": {}}'), "steps.parquet cannot be read"),
        ("steps", with_value("left_out", '{"count": 1, "some": {"p": "stole"}}'), "steps.parquet cannot be read"),
        ("parts", with_value("name", "Asha\x1b[2J"), "holds what cannot be a 'name'"),
        ("convictions", with_value("why", "lied\x1b[2J"), "holds what cannot be a 'why'"),
        ("convictions", with_value("lifted", -1.0), "holds what cannot be a 'lifted'"),
        ("parts", with_value("peer", "no peer"), "holds what cannot be a 'peer'"),
        ("parts", with_value("name", "x" * 100_001), "holds what cannot be a 'name'"),
        ("contributions", with_value("part", 99), "does not fit together"),
        ("evaluations", with_value("samples", "["), "evaluations.parquet cannot be read"),
        ("evaluations", with_value("samples", "[" * 40_000 + "]" * 40_000), "evaluations.parquet cannot be read"),
        ("evaluations", with_value("samples", '[{"before": 1}]'), "evaluations.parquet cannot be read"),
        ("evaluations", with_value("metrics", '{"accuracy": 7}'), "evaluations.parquet cannot be read"),
        ("suites", with_value("mean", float("nan")), "holds what cannot be a 'mean'"),
        ("suites", with_value("model", "them\x1b[2J"), "holds what cannot be a 'model'"),
        ("pictures", with_value("pixels", bytes(12)), "holds a picture under another one's name"),
        ("pictures", with_value("pixels", b"<svg>"), "pictures.parquet cannot be read"),
        ("pictures", with_value("digest", "x.webp"), "holds what cannot be a 'digest'"),
        ("steps", lambda table: table.append_column("x", table["step"]), "has columns that no ledger has"),
        ("steps", lambda table: table.drop_columns(["loss"]), "lacks the column 'loss'"),
        ("steps", lambda table: table.append_column("step", table["step"]), "has columns that no ledger has"),
    ],
)
def test_a_copy_that_no_ledger_wrote_is_refused_and_changes_nothing(
    copy: Path, empty: Path, file: str, change: Change, fault: str
) -> None:
    before = everything(empty)
    changed(copy / f"{file}.parquet", change)
    with pytest.raises(UserError, match=fault):
        restore(empty, copy)
    assert everything(empty) == before


def test_what_is_no_copy_at_all_is_refused(copy: Path, empty: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no copy"):
        restore(empty, tmp_path / "nowhere")
    (copy / "steps.parquet").write_bytes((copy / "steps.parquet").read_bytes()[:-20])
    with pytest.raises(UserError, match=r"steps\.parquet cannot be read"):
        restore(empty, copy)
    parquet.write_table(pa.table({"step": [1]}), copy / "steps.parquet")
    with pytest.raises(UserError, match="is no table of a ledger"):
        restore(empty, copy)
    (copy / "steps.parquet").unlink()
    with pytest.raises(UserError, match=r"the copy of the ledger lacks steps\.parquet"):
        restore(empty, copy)


def test_a_strange_table_is_refused(copy: Path, empty: Path) -> None:
    (copy / "evil.parquet").write_bytes((copy / "steps.parquet").read_bytes())
    with pytest.raises(UserError, match=r"evil\.parquet is no table of a ledger"):
        restore(empty, copy)


@pytest.mark.parametrize(("version", "told"), [(99, "by a newer version of dedloc_kit"), (11, "by an earlier version")])
def test_a_copy_of_another_version_is_refused_and_changes_nothing(
    path: Path, empty: Path, tmp_path: Path, version: int, told: str
) -> None:
    before = everything(empty)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute("DROP TABLE answered")
    connection.close()
    write_copy(path, tmp_path / "other")
    with pytest.raises(UserError, match=rf"\.parquet was made {told}"):
        restore(empty, tmp_path / "other")
    assert everything(empty) == before


def test_a_file_whose_footer_is_too_large_is_not_opened(copy: Path, empty: Path) -> None:
    table = parquet.read_table(copy / "steps.parquet")
    table = table.replace_schema_metadata({**table.schema.metadata, b"more": b"x" * 3_000_000})
    parquet.write_table(table, copy / "steps.parquet")
    with pytest.raises(UserError, match=r"steps\.parquet is too large"):
        restore(empty, copy)


def test_a_copy_that_takes_too_long_changes_nothing(copy: Path, empty: Path) -> None:
    before = everything(empty)
    with pytest.raises(UserError, match=r"\.parquet takes too long to read"):
        restore(empty, copy, seconds=-1.0)
    assert everything(empty) == before


def test_a_file_of_some_hundred_bytes_that_unpacks_to_gigabytes_gets_no_memory(copy: Path, empty: Path) -> None:
    file, rows = copy / "parts.parquet", 2000
    schema = parquet.read_schema(file)
    columns = {field.name: pa.array([1] * rows).cast(field.type) for field in schema}
    columns["name"] = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["a" * 2_000_000]))
    bomb = pa.table(columns)
    with parquet.ParquetWriter(file, bomb.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(bomb)
        writer.add_key_value_metadata(schema.metadata)
    assert file.stat().st_size < 10_000
    before, peak = everything(empty), Peak()
    peak.start()
    with pytest.raises(UserError, match=r"parts\.parquet holds what cannot be a 'name'"):
        restore(empty, copy)
    assert peak.end() < 2**28
    assert everything(empty) == before
