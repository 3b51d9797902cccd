"""What the page of a served model tells programs, and who is let in through it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from dedloc_kit.cli.main import main
from dedloc_kit.client import fetch_invitation
from dedloc_kit.dashboard.serving import view
from dedloc_kit.dashboard.serving.dashboard import ServingDashboard
from dedloc_kit.events import Failed, Left, State
from dedloc_kit.serving.config import serving_of
from tests.dashboard.served_model import GAP, LAYERS, SERVING, WHOLE, served, server
from tests.hang import HANG
from tests.invitations import NOBODY, ORGANIZER, invited


@pytest.fixture
def page() -> Iterator[ServingDashboard]:
    opened = ServingDashboard(SERVING)
    opened.start()
    yield opened
    opened.stop()


def get(page: ServingDashboard, path: str) -> requests.Response:
    return requests.get(page.url + path, timeout=HANG)


def state_of(page: ServingDashboard) -> dict[str, Any]:
    values: dict[str, Any] = page._state().model_dump(mode="json")
    return values


def test_the_invitation_is_given_out_once_there_is_one(page: ServingDashboard) -> None:
    assert get(page, "/api/invitation").json() == {"reason": "starting"}
    assert state_of(page)["refusal"] == "starting"
    page.give_out(invited(SERVING, (NOBODY,), page.url))
    invitation = fetch_invitation(f"{page.url}#{ORGANIZER.peer}")
    assert serving_of(invitation) == SERVING
    assert (state_of(page)["refusal"], state_of(page)["organizer"]) == (None, ORGANIZER.peer)
    assert get(page, "/requirements.txt").text.startswith(f"dedloc_kit @ {page.url}/wheel/")


def test_how_long_each_server_has_held_its_layers_is_told() -> None:
    now = [1000.0]
    seen = view.ServingView(SERVING, clock=lambda: now[0])
    for at, servers in (
        (1000.0, (server(0, 0, 15), server(1, 15, 30))),
        (1060.0, (server(0, 0, 15), server(1, 10, 30), server(2, 0, 10))),
        (1120.0, (server(0, 0, 15), server(1, 10, 30))),
        (1180.0, (server(0, 0, 15), server(1, 10, 30), server(2, 0, 10))),
    ):
        now[0] = at
        seen.hear(served(*servers))
    assert {each.peer: each.since for each in seen.state().servers} == {"Qm0": 1000.0, "Qm1": 1060.0, "Qm2": 1180.0}


def test_how_it_is_served_is_told_as_the_description_says(page: ServingDashboard) -> None:
    from openapi_spec_validator import validate  # compiles grammars for seconds, in each process that collects

    page.publish(GAP)
    description = get(page, "/api/openapi.json").json()
    validate(description)
    told = get(page, "/api/serving").json()
    reference = description["paths"]["/api/serving"]["get"]["responses"]["200"]["content"]["application/json"]
    assert set(told) == set(
        description["components"]["schemas"][reference["schema"]["$ref"].split("/")[-1]]["properties"]
    )
    assert (told["status"], told["bare_layers"], told["single_layers"], told["speed"]) == ("incomplete", 4, 6, 0.0)
    assert (told["layers"], told["server_count"], told["sessions"]) == (LAYERS, 10, 20)
    assert told["stretches"][0] == {"begin": 0, "end": 8, "servers": 2, "speed": 20.0}
    assert [each["current"] for each in told["servers"] if each["peer"] == "Qm6"] == [False]
    assert [each["reachable"] for each in told["servers"] if each["peer"] == "Qm1"] == [False]


def test_the_status_follows_the_first_server(page: ServingDashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of(page)["status"] == "starting"
    page.publish(State(text="reading the model"))
    assert (state_of(page)["status"], state_of(page)["message"]) == ("starting", "reading the model")
    page.publish(WHOLE)
    assert (state_of(page)["status"], state_of(page)["message"], state_of(page)["speed"]) == ("serving", "", 15.0)
    for end in (Failed(text="out of memory"), Left(step=0, session_samples=0)):
        page.publish(end)
        assert state_of(page)["status"] == "lost"
        page.publish(WHOLE)
        assert state_of(page)["status"] == "serving"
    monkeypatch.setattr(view, "SILENCE_SECONDS", 0.0)
    assert state_of(page)["status"] == "lost"


def test_of_many_servers_the_first_are_shown_and_all_count(page: ServingDashboard) -> None:
    page.publish(served(*(server(number) for number in range(view.SHOWN + 5))))
    told = state_of(page)
    assert (len(told["servers"]), told["server_count"], told["speed"]) == (view.SHOWN, view.SHOWN + 5, 2050.0)


def test_a_viewer_is_told_the_state_and_then_what_changes(page: ServingDashboard) -> None:
    page.publish(GAP)
    with requests.get(page.url + "/api/events", stream=True, timeout=HANG) as answer:
        lines = (line.decode() for line in answer.iter_lines(chunk_size=1) if line.startswith((b"event", b"data")))
        assert next(lines) == "event: state"
        assert json.loads(next(lines).removeprefix("data: "))["status"] == "incomplete"
        page.publish(WHOLE)
        assert next(lines) == "event: change"
        changed = json.loads(next(lines).removeprefix("data: "))
        assert changed["status"] == "serving"
        assert "run_id" not in changed


def test_prometheus_is_told_how_it_is_served(page: ServingDashboard) -> None:
    page.publish(GAP)
    metrics = {metric.name: metric for metric in text_string_to_metric_families(get(page, "/metrics").text)}
    found = {name.removeprefix("dedloc_serving_"): metric.samples[0].value for name, metric in metrics.items()}
    assert found["servers"] == 10
    assert (found["layers"], found["layers_without_server"], found["layers_with_one_server"]) == (LAYERS, 4, 6)
    assert (found["cache_tokens"], found["free_cache_tokens"], found["sessions"]) == (80_000, 60_000, 20)
    assert found["bottleneck_tokens_per_second"] == 0.0
    (refused,) = metrics["dedloc_serving_refused_requests"].samples
    assert (refused.labels, refused.value) == ({"kind": "<b>a push</b>"}, 3)
    assert metrics["dedloc_serving_status"].samples[0].labels == {"status": "incomplete"}


def test_the_status_command_tells_how_a_model_is_served(
    page: ServingDashboard, capsys: pytest.CaptureFixture[str]
) -> None:
    page.publish(GAP)
    assert main(["status", page.url]) == 0
    told = capsys.readouterr().out
    assert f"{SERVING.run_id}: incomplete" in told
    assert "nobody serves the layers 22 to 25 of 30" in told
    assert "one server alone serves the layers 20 to 21, 26 to 29 of 30" in told
    assert "60,000 of 80,000 tokens free" in told
    assert "\u202e" not in told
