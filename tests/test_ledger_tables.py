"""What other programs read of a ledger."""

import csv
from pathlib import Path

import pytest
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.ledger import Conviction, Ledger, SuiteScore, tables
from dedloc_kit.ledger.tables import TABLES, TableName, write_table
from dedloc_kit.records.evaluation import Evaluation
from tests.ledgers import GAP, NOON, a_step, given


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three global steps of two people, of whom one has a name that a spreadsheet would compute."""
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step in (1, 2, 3):
        bina = given(step, 5, 5 * step, session="b1", name="=1+1")
        ledger.record_step(a_step(step, 15), {"12D3KooAsha": given(step, 10, 10 * step), "12D3KooBina": bina})
    ledger.record_evaluation(0, Evaluation(loss=9.5, metrics={"accuracy": 0.25}, samples=(GAP,)), 1000.0)
    ledger.record_convictions(
        [Conviction("12D3KooCy", NOON, "=2+2", "lied", last_passed=2), Conviction("12D3KooDi", 9.0, "Di", "hid")]
    )
    ledger.close()
    return tmp_path / "ledger.sqlite"


def rows_of(path: Path, name: TableName) -> list[dict[str, object]]:
    write_table(path, name, "parquet", path.with_name("table.parquet"))
    rows: list[dict[str, object]] = parquet.read_table(path.with_name("table.parquet")).to_pylist()
    return rows


def cells_of(path: Path, name: TableName) -> list[dict[str, str]]:
    write_table(path, name, "csv", path.with_name("table.csv"))
    return list(csv.DictReader(path.with_name("table.csv").read_text(encoding="utf-8").splitlines()))


def test_parquet_has_the_types_and_values_of_the_ledger(path: Path) -> None:
    assert [(row["step"], row["samples"], row["loss"]) for row in rows_of(path, "steps")] == [
        (1, 15, 2.0),
        (2, 15, 2.0),
        (3, 15, 2.0),
    ]
    given = rows_of(path, "contributions")
    assert {(row["step"], row["peer"], row["session"], row["samples"]) for row in given} >= {
        (2, "12D3KooAsha", "a1", 10),
        (3, "12D3KooBina", "b1", 5),
    }
    assert len(given) == 6
    (evaluation,) = rows_of(path, "evaluations")
    assert (evaluation["step"], evaluation["loss"], evaluation["metrics"]) == (0, 9.5, '{"accuracy": 0.25}')
    assert [(row["name"], row["samples"], row["steps"]) for row in rows_of(path, "people")] == [
        ("Asha", 30, 3),
        ("=1+1", 15, 3),
    ]
    convicted = [tuple(row.values()) for row in rows_of(path, "convictions")]
    assert convicted == [("12D3KooDi", 9.0, "Di", "hid", None, None), ("12D3KooCy", NOON, "=2+2", "lied", None, 2)]


def test_csv_says_the_same_and_a_spreadsheet_computes_nothing_in_it(path: Path) -> None:
    for name in TABLES:
        assert [list(row) for row in cells_of(path, name)] == [list(row) for row in rows_of(path, name)]
    assert [row["name"] for row in cells_of(path, "people")] == ["Asha", "'=1+1"]
    assert {row["name"] for row in cells_of(path, "contributions")} == {"Asha", "'=1+1"}
    assert [row["name"] for row in cells_of(path, "convictions")] == ["Di", "'=2+2"]


@pytest.mark.parametrize("name", ["+1", "-1", "@sum(1)", "＝1", "=cmd|' /C calc'!A0"])
def test_whatever_a_name_begins_with_it_is_text(tmp_path: Path, name: str) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_contribution("12D3Koo", given(1, 5, 5, name=name))
    ledger.close()
    assert [row["name"] for row in cells_of(tmp_path / "ledger.sqlite", "people")] == [f"'{name}"]


def test_a_table_is_read_in_batches_and_as_it_stood_at_one_moment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 2)
    with tables.read_snapshot(path) as connection:
        columns = tables.columns_of(connection, "contributions")
        batches = tables.read_query(connection, "SELECT * FROM contributions", columns)
        assert next(batches).num_rows == 2
        ledger = Ledger(path)
        ledger.record_step(a_step(4, 10), {"12D3KooAsha": given(4, 10, 40)})
        ledger.close()
        assert [batch.num_rows for batch in batches] == [2, 2]
    assert len(rows_of(path, "contributions")) == 7


def test_an_empty_ledger_has_tables_without_rows(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    for name in TABLES:
        assert rows_of(tmp_path / "ledger.sqlite", name) == cells_of(tmp_path / "ledger.sqlite", name) == []


def test_what_cannot_be_read_or_written_is_explained(path: Path, tmp_path: Path) -> None:
    for name in TABLES:
        with pytest.raises(UserError, match=r"the ledger cannot be .*; "):
            write_table(tmp_path / "none.sqlite", name, "csv", tmp_path / "table.csv")
        with pytest.raises(UserError, match="cannot be written"):
            write_table(path, name, "parquet", tmp_path / "none" / "table.parquet")


def test_scores_by_suites_are_a_table_too(path: Path) -> None:
    ledger = Ledger(path)
    ledger.record_suites([SuiteScore("accuracy of near", model, 0, NOON, 12, 0.5, None) for model in ("=them", "")])
    ledger.close()
    own, other = cells_of(path, "suites")
    assert (own["model"], own["mean"], own["spread"], own["questions"]) == ("", "0.5", "", "12")
    assert other["model"] == "'=them"
