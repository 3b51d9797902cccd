"""The numbers for Prometheus, and that the Grafana board draws only such as there are."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.events import Peers
from dedloc_kit.ledger import Conviction, Ledger
from dedloc_kit.records.orders import Checks
from dedloc_kit.records.steps import GlobalStep, LeftOut
from dedloc_kit.resources import shipped
from tests.dashboard.runs import BEGAN, RUN, fill

CHECKED = ("audits_passed", "audits_given_up", "convictions", "audited_share", "sent_away")


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    served.start()
    yield served
    served.stop()


def scrape(dashboard: Dashboard) -> dict[str, Metric]:
    answer = requests.get(dashboard.url + "/metrics", timeout=20)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {metric.name: metric for metric in text_string_to_metric_families(answer.text)}


def value(metrics: dict[str, Metric], name: str) -> float:
    (sample,) = metrics[name].samples
    return float(sample.value)


def test_before_a_run_has_begun_what_is_not_known_is_left_out(dashboard: Dashboard) -> None:
    found = scrape(dashboard)
    assert value(found, "dedloc_global_step") == 0
    assert found["dedloc_status"].samples[0].labels == {"status": "starting"}
    assert "dedloc_training_loss" not in found
    assert not {f"dedloc_{name}" for name in CHECKED} & found.keys(), "nothing is checked"
    assert all(math.isfinite(sample.value) for metric in found.values() for sample in metric.samples)


def test_prometheus_is_told_how_the_run_stands(dashboard: Dashboard, tmp_path: Path) -> None:
    fill(tmp_path / "ledger.sqlite", ["Asha", "Olena"], steps=4)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    done = GlobalStep(
        step=5,
        round="a5",
        time=BEGAN + 300,
        samples=64,
        loss=1.5,
        peers=2,
        seconds=0.5,
        compute=50.0,
        gather=5.0,
        average=4.0,
        apply=1.0,
        left_out=LeftOut(count=3, some={"p": "fell silent"}),
    )
    ledger.record_step(done, {})
    ledger.record_trouble("rejected", "a record was refused", count=7)
    found = scrape(dashboard)
    for name, expected in {
        "dedloc_global_step": 5,
        "dedloc_total_steps": 100,
        "dedloc_training_loss": 1.5,
        "dedloc_held_out_loss": 2.0,
        "dedloc_contributors": 2,
        "dedloc_samples": 512,
        "dedloc_seconds_per_step": 60,
        "dedloc_rejected_records": 7,
        "dedloc_failed_rounds": 0,
        "dedloc_left_out": 3,
        "dedloc_last_step_timestamp_seconds": BEGAN + 300,
    }.items():
        assert value(found, name) == expected
    phases = {sample.labels["phase"]: sample.value for sample in found["dedloc_round_seconds"].samples}
    assert phases == {"compute": 50.0, "gather": 5.0, "average": 4.0, "apply": 1.0}
    assert found["dedloc_run_info"].samples[0].labels == {"name": "demo", "run_id": RUN.run_id}


def test_what_the_checks_have_found_is_told_where_there_are_any(dashboard: Dashboard, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_convictions([Conviction("p", BEGAN, "Asha", "lied"), Conviction("q", BEGAN, "Bo", "lied")])
    ledger.record_convictions([Conviction("q", BEGAN, "Bo", "lied")])
    dashboard.publish(Peers(peers=(), checks=Checks(passed=40, given_up=3, convicted=1, share=0.3, alarm=12)))
    found = scrape(dashboard)
    told = {name: value(found, f"dedloc_{name}") for name in CHECKED}
    assert told == {"audits_passed": 40, "audits_given_up": 3, "convictions": 2, "audited_share": 0.3, "sent_away": 1}


def test_two_dashboards_in_one_process_keep_their_numbers_apart(dashboard: Dashboard, tmp_path: Path) -> None:
    fill(tmp_path / "other.sqlite", steps=2)
    other = Dashboard(RUN, tmp_path / "other.sqlite")
    other.start()
    assert [value(scrape(served), "dedloc_global_step") for served in (dashboard, other)] == [0, 2]
    other.stop()


def test_the_grafana_board_draws_only_what_there_is(dashboard: Dashboard) -> None:
    text = (shipped("dashboards") / "grafana" / "dashboard.json").read_text(encoding="utf-8")
    board = json.loads(text)
    told = requests.get(dashboard.url + "/metrics", timeout=20).text
    there = set(re.findall(r"^# HELP (\w+) ", told, re.MULTILINE))
    # A run that has not begun leaves these out.
    there |= {f"dedloc_{name}" for name in ("training_loss", "held_out_loss", "seconds_per_step", "run_eta_seconds")}
    there.add("dedloc_last_step_timestamp_seconds")
    drawn = set(re.findall(r"dedloc_\w+", " ".join(target["expr"] for p in board["panels"] for target in p["targets"])))
    assert drawn <= there
    assert len(drawn) > 15
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {target["datasource"]["uid"] for panel in board["panels"] for target in panel["targets"]} == {
        "${datasource}"
    }
