"""What the page of a run tells of the stages that its model is cut into."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from dedloc_kit.cli.main import main
from dedloc_kit.dashboard.live import view
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.events import Failed, Peers
from dedloc_kit.pipeline_state import MAX_TOLD
from tests.dashboard.runs import COORDINATOR, HOSTILE_NAMES, RUN, joined, seen
from tests.dashboard.staged_run import COUNT, GAP, LIMITED, STAGED, WHOLE, offer, pipeline
from tests.hang import HANG


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    served = Dashboard(STAGED, tmp_path / "ledger.sqlite")
    served.start()
    served.publish(joined())
    served.publish(Peers(peers=(COORDINATOR, seen("Qm1"))))
    yield served
    served.stop()


def get(dashboard: Dashboard, path: str) -> requests.Response:
    return requests.get(dashboard.url + path, timeout=HANG)


def test_the_stages_their_peers_and_what_limits_the_run_are_told(dashboard: Dashboard) -> None:
    nothing = {"count": COUNT, "stages": [], "throughput": 0.0, "bottleneck": None, "limiting": [], "drivers": []}
    assert get(dashboard, "/api/pipeline").json() == nothing
    dashboard.publish(LIMITED)
    told = get(dashboard, "/api/pipeline").json()
    assert (told["throughput"], told["limiting"]) == (3.1, [2])
    assert told["bottleneck"] == "stage 2 of 4 limits the run: 3.1 of 7.8 microbatches/s"
    assert [len(stage["peers"]) for stage in told["stages"]] == [3, 2, 2, 3]
    assert [(stage["forward"], stage["backward"]) for stage in told["stages"]] == [(2, 1), (1, 0), (16, 3), (0, 1)]
    assert told["stages"][1]["peers"][1] == {
        "peer": "Qm4",
        "name": HOSTILE_NAMES[4],
        "state": "moving",
        "microbatches_per_second": 1.5,
        "queue": 1,
        "served": 900,
        "moving_to": 2,
        "accusers": 1,
    }
    assert told["drivers"] == [{"peer": "Qm10", "name": HOSTILE_NAMES[0], "driven": 640, "begun": 24}]
    assert get(dashboard, "/pipeline").status_code == 200


def test_viewers_are_told_in_a_glance_and_that_the_lists_have_news(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "REVISION_SECONDS", 0.0)
    before = get(dashboard, "/api/state").json()
    assert (before["stages"], before["bottleneck"]) == (COUNT, None)
    dashboard.publish(GAP)
    after = get(dashboard, "/api/state").json()
    assert after["bottleneck"] == "stage 2 of 4 has nobody"
    assert after["revision"] > before["revision"]


def test_what_a_lost_coordinator_saw_last_is_not_told_as_it_is_now(dashboard: Dashboard) -> None:
    dashboard.publish(WHOLE)
    dashboard.publish(Failed(text="no memory"))
    assert get(dashboard, "/api/pipeline").json()["stages"] == []
    assert get(dashboard, "/api/state").json()["bottleneck"] is None


def test_a_run_whose_model_is_whole_has_no_stages(tmp_path: Path) -> None:
    whole = Dashboard(RUN, tmp_path / "ledger.sqlite")
    whole.start()
    answer = get(whole, "/api/pipeline")
    assert (answer.status_code, answer.json()) == (404, {"message": "the model of this run is not cut into stages"})
    assert get(whole, "/api/state").json()["stages"] is None
    assert "dedloc_stage_peers" not in get(whole, "/metrics").text
    whole.stop()


def test_prometheus_is_told_of_each_stage_and_of_no_peer(dashboard: Dashboard) -> None:
    assert "dedloc_stage_peers" not in get(dashboard, "/metrics").text, "nothing is known yet"
    dashboard.publish(LIMITED)
    text = get(dashboard, "/metrics").text
    found = {metric.name.removeprefix("dedloc_"): metric.samples for metric in text_string_to_metric_families(text)}

    def values(name: str) -> dict[str, float]:
        return {sample.labels["stage"]: sample.value for sample in found[name]}

    assert values("stage_peers") == {"0": 3, "1": 2, "2": 1, "3": 3}
    assert values("stage_waiting_calls")["2"] == 12
    assert values("stage_microbatches_per_second")["1"] == 5.5
    assert values("stage_global_step")["3"] == 7
    assert values("stage_accused_peers") == {"0": 0, "1": 0, "2": 0, "3": 0}, "one driver alone may say anything"
    assert [found[name][0].value for name in ("bottleneck_microbatches_per_second", "drivers")] == [3.1, 1]
    assert "Qm4" not in text


def test_the_status_command_tells_what_limits_the_run(dashboard: Dashboard, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", dashboard.url]) == 0
    assert "nothing is heard of the stages now" in capsys.readouterr().out
    crowd = pipeline(*(offer(number, 1) for number in range(MAX_TOLD + 5)))
    dashboard.publish(crowd)
    assert main(["status", dashboard.url]) == 0
    told = capsys.readouterr().out
    assert "stages 0, 2, 3 of 4 have nobody" in told
    rows = [line.strip("│ ").split("│") for line in told.splitlines() if "nobody" in line or f"{MAX_TOLD + 5}" in line]
    assert ["".join(row).split()[:3] for row in rows[1:]] == [
        ["0", "nobody", "0"],
        ["1", f"{MAX_TOLD + 5}", "410"],
        ["2", "nobody", "0"],
        ["3", "nobody", "0"],
    ]
