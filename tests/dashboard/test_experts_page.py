"""What the page of a run tells of the experts that volunteers host."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from dedloc_kit.cli.main import main
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.events import Failed, Peers
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.steps import Carried, Contribution
from tests.dashboard.expert_run import HELD, LACKING, MIXED, WHOLE, state
from tests.dashboard.runs import COORDINATOR, HOSTILE_NAMES, RUN, joined, seen
from tests.ledgers import a_step, given


@pytest.fixture
def dashboard(tmp_path: Path) -> Dashboard:
    made = Dashboard(MIXED, tmp_path / "ledger.sqlite")
    made.publish(joined())
    made.publish(Peers(peers=(COORDINATOR, seen("Qm1"))))
    return made


@pytest.fixture
def client(dashboard: Dashboard) -> TestClient:
    return TestClient(dashboard._application())


def told(client: TestClient, path: str) -> Any:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_each_cell_is_told_with_who_has_it_on_how_many_machines_and_how_many_tokens_it_gets(
    dashboard: Dashboard, client: TestClient
) -> None:
    nothing = {"rows": 2, "columns": 3, "count": 12, "layers": [], "hosts": [], "held": None}
    assert told(client, "/api/experts") == nothing
    dashboard.publish(LACKING)
    found = told(client, "/api/experts")
    assert found["hosts"][1] == {"peer": "Qm1", "name": HOSTILE_NAMES[0], "organizer": False, "kept": 6, "copies": 4}
    assert found["layers"][0] == {
        "layer": 1,
        "keepers": [1, 1, 1, 2, 2, 0],
        "stand_ins": [2, 2, 2, 1, 1, None],
        "machines": [2, 2, 2, 2, 2, 1],
        "tokens": [10, 20, 30, 0, 60, 0],
        "most_over_mean": 3.0,
    }
    assert (found["layers"][1]["machines"][5], found["layers"][1]["most_over_mean"]) == (0, 0.0)
    in_a_glance = told(client, "/api/state")
    assert (in_a_glance["experts"], in_a_glance["experts_held"], found["held"]) == (12, HELD[0], HELD[0])
    assert client.get("/experts").status_code == 200
    dashboard.publish(Failed(text="no memory"))
    assert told(client, "/api/experts")["layers"] == [], "what a lost coordinator saw last is not how it is now"
    assert told(client, "/api/state")["experts_held"] is None


def test_a_run_without_experts_has_none_and_of_very_many_no_cell_is_told(
    dashboard: Dashboard, client: TestClient, tmp_path: Path
) -> None:
    without = TestClient(Dashboard(RUN, tmp_path / "other.sqlite")._application())
    assert (without.get("/api/experts").status_code, told(without, "/api/state")["experts"]) == (404, None)
    assert "dedloc_experts" not in without.get("/metrics").text
    dashboard.publish(state())
    assert "too many" in told(client, "/api/experts")["held"]
    assert "dedloc_experts" not in client.get("/metrics").text


def test_prometheus_is_told_of_each_layer_and_of_no_peer(dashboard: Dashboard, client: TestClient) -> None:
    dashboard.publish(LACKING)
    text = client.get("/metrics").text
    found = {metric.name: metric.samples for metric in text_string_to_metric_families(text)}
    on_machines = {(s.labels["layer"], s.labels["machines"]): s.value for s in found["dedloc_experts"]}
    assert on_machines == {
        ("1", "0"): 0,
        ("1", "1"): 1,
        ("1", "2"): 5,
        ("3", "0"): 1,
        ("3", "1"): 0,
        ("3", "2"): 5,
    }
    assert [s.value for s in found["dedloc_experts_most_over_mean"]] == [3.0, 0.0]
    assert [s.value for s in found["dedloc_experts_tokens"]] == [120, 0]
    assert found["dedloc_experts_hosts"][0].value == 2
    assert "Qm1" not in text


def test_the_status_command_tells_how_well_the_experts_are_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Dashboard(MIXED, tmp_path / "ledger.sqlite")
    served.start()
    served.publish(joined())
    for event, expected in ((None, "nothing is heard of the 12 experts now"), (WHOLE, HELD[1])):
        if event is not None:
            served.publish(event)
        assert main(["status", served.url]) == 0
        assert expected in capsys.readouterr().out
    served.stop()


def test_who_hosted_or_lent_a_line_has_a_page_and_a_certificate_that_add_it_to_no_samples(
    dashboard: Dashboard, client: TestClient, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite", answers=MIXED.answers_of_a_sample)
    ledger.record_presence([seen(peer, name=HOSTILE_NAMES[0]) for peer in ("QmA", "QmHost")])

    def confirmed(step: int) -> Contribution:
        return given(step, 64, 64 * step).model_copy(update={"answered": {"QmHost": 5000 * step, "QmLent": 7}})

    lent = {"QmLent": Carried(bytes=3 * 10**9, name="Lena")}
    ledger.record_step(a_step(1).model_copy(update={"carried": lent}), {"QmA": confirmed(1)})
    both = {"QmA": confirmed(2), "QmHost": given(2, 5, 5, session="b1")}
    ledger.record_step(a_step(2), both)
    ledger.close()
    (host,) = told(client, "/api/hosts")["hosts"]
    assert (host["peer"], host["tokens"], host["active"]) == ("QmHost", 10_000, False)
    people = told(client, "/api/people")
    assert (people["samples_total"], [each["answered"] for each in people["people"]]) == (133, [0, 10_000])
    lender = told(client, "/api/people/QmLent")["person"]
    assert (lender["samples"], lender["rank"], lender["carried"], lender["answered"]) == (0, 0, 3 * 10**9, 0)
    for peer, words in {
        "QmHost": ("10,000", "tokens answered for others", "samples computed"),
        "QmLent": ("3.0 GB", "carried for others", "lent their line to train"),
    }.items():
        drawn = client.get(f"/people/{peer}/certificate.svg").text
        assert all(f">{word}<" in drawn for word in words)
    assert "samples computed" not in client.get("/people/QmLent/certificate.svg").text
    for table, line in {"hosts": "QmHost", "lenders": "QmLent"}.items():
        assert line in client.get(f"/api/export/{table}.csv").text
    assert client.get("/api/people/QmNobody").status_code == 404
