"""The ledger as files, over HTTP."""

import io
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from pyarrow import parquet

from dedloc_kit.dashboard.routes import exports
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.ledger import Ledger
from dedloc_kit.ledger.copying import restore
from dedloc_kit.ledger.tables import TABLES, write_table
from tests.hang import HANG
from tests.ledgers import a_step, given
from tests.tiny import tiny_run


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_step(a_step(1), {"12D3Koo": given(1, 64, 64, name="=1+1")})
    yield ledger
    ledger.close()


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    served = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
    served.start()
    yield served
    served.stop()


def get(dashboard: Dashboard, path: str) -> requests.Response:
    return requests.get(dashboard.url + path, timeout=HANG)


def test_every_table_is_there_as_csv_and_as_parquet(ledger: Ledger, dashboard: Dashboard) -> None:
    for name in TABLES:
        answer = get(dashboard, f"/api/export/{name}.csv")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}.csv"'
        table = parquet.read_table(io.BytesIO(get(dashboard, f"/api/export/{name}.parquet").content))
        assert answer.text.splitlines()[0] == ",".join(f'"{column}"' for column in table.column_names)
    assert '"\'=1+1"' in get(dashboard, "/api/export/people.csv").text


def test_the_whole_ledger_can_be_fetched_and_restored(ledger: Ledger, dashboard: Dashboard, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(get(dashboard, "/api/export/ledger.zip").content))
    archive.extractall(tmp_path / "copy")
    Ledger(tmp_path / "restored.sqlite").close()
    restore(tmp_path / "restored.sqlite", tmp_path / "copy")
    restored = Ledger(tmp_path / "restored.sqlite", read_only=True)
    assert restored.contributors() == ledger.contributors()
    assert restored.steps() == ledger.steps()
    restored.close()


def test_whoever_asks_soon_after_another_gets_the_same_file(
    ledger: Ledger, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = get(dashboard, "/api/export/steps.csv").text
    ledger.record_step(a_step(2), {"12D3Koo": given(2, 64, 128)})
    assert get(dashboard, "/api/export/steps.csv").text == before
    monkeypatch.setattr(exports, "FRESH_SECONDS", 0.0)
    assert get(dashboard, "/api/export/steps.csv").text.count("\n") == before.count("\n") + 1


@pytest.mark.parametrize("name", ["steps.csv", "steps.parquet", "ledger.zip"])
def test_whoever_has_a_file_gets_no_body_until_there_is_something_new_in_it(
    ledger: Ledger, tmp_path: Path, name: str
) -> None:
    def ask(tag: str | None) -> tuple[int, int, str]:
        """At a start of its own, which makes the file again."""
        served = Dashboard(tiny_run(), tmp_path / "ledger.sqlite")
        served.start()
        try:
            headers = {} if tag is None else {"If-None-Match": tag}
            answer = requests.get(f"{served.url}/api/export/{name}", headers=headers, timeout=HANG)
            return answer.status_code, len(answer.content), answer.headers["ETag"]
        finally:
            served.stop()

    status, size, tag = ask(None)
    assert (status, size > 0) == (200, True)
    assert ask(tag) == (304, 0, tag)
    assert ask(f'"another", {tag}') == (304, 0, tag)
    assert ask('"another"') == (200, size, tag)
    ledger.record_step(a_step(2), {"12D3Koo": given(2, 64, 128)})
    status, _, newer = ask(tag)
    assert (status, newer == tag) == (200, False)


def test_while_a_file_is_made_everything_else_is_answered_and_a_second_one_waits(
    ledger: Ledger, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, made = threading.Semaphore(0), threading.Event(), []

    def slow(*arguments: object) -> None:
        begun.release()
        made.append(arguments[1])
        assert go_on.wait(HANG)
        write_table(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(exports, "write_table", slow)
    with ThreadPoolExecutor() as pool:
        try:
            asked = [pool.submit(get, dashboard, f"/api/export/{name}.csv") for name in ("steps", "people")]
            assert begun.acquire(timeout=HANG)
            assert get(dashboard, "/api/state").status_code == 200
            assert len(made) == 1
        finally:
            go_on.set()
        assert [answer.result().status_code for answer in asked] == [200, 200]


def test_before_the_run_has_begun_and_for_other_names_there_is_nothing_and_no_path_is_told(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    for name, status in (("steps.csv", 404), ("ledger.zip", 404), ("sqlite_schema.csv", 422), ("steps.exe", 422)):
        answer = get(dashboard, f"/api/export/{name}")
        assert answer.status_code == status
        assert str(tmp_path) not in answer.text
