import gc
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest
import requests

from dedloc_kit.cli.main import main
from dedloc_kit.config.loading import parse_run
from dedloc_kit.config.run import RunConfig
from dedloc_kit.dashboard.live import view
from dedloc_kit.dashboard.routes import join_routes, pages
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.distribution import Wheel, running_wheel
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Evaluated, Failed, Left, Peers, State, StepDone, Warned
from dedloc_kit.ledger import Ledger, StartPoint, SuiteScore
from dedloc_kit.records.evaluation import Evaluation, FillMask
from dedloc_kit.records.invitation import Invitation, Refusal
from dedloc_kit.records.orders import Announcement, Decay
from dedloc_kit.records.steps import Contribution, GlobalStep
from tests.dashboard.runs import COORDINATOR, HOSTILE, RUN, fill, joined, seen
from tests.hang import HANG
from tests.invitations import invited


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def dashboard(path: Path) -> Iterator[Dashboard]:
    served = Dashboard(RUN, path)
    served.start()
    yield served
    served.stop()


def get(dashboard: Dashboard, path: str) -> requests.Response:
    return requests.get(dashboard.url + path, timeout=HANG)


def state_of(dashboard: Dashboard) -> dict[str, Any]:
    answer = get(dashboard, "/api/state")
    assert answer.status_code == 200
    values: dict[str, Any] = answer.json()
    return values


def record(ledger: Ledger, step: int, *, name: str = "Asha", samples: int = 64, way: str = "a") -> GlobalStep:
    done = GlobalStep(
        step=step,
        round=f"{way}{step:x}",
        time=1000.0 + 5 * step,
        samples=samples,
        loss=4.0 - step / 100,
        peers=2,
        seconds=0.5,
    )
    contribution = Contribution(
        run_id=RUN.run_id,
        step=step,
        session="a1",
        samples=samples,
        session_samples=samples * step,
        loss=2.0,
        name=name,
        time=done.time,
    )
    ledger.record_step(done, {"p": contribution})
    return done


class Viewing:
    """One viewer of the event stream, read in a thread."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ended = threading.Event()
        self._heard = threading.Condition()
        self._answer = requests.get(dashboard.url + "/api/events", stream=True, timeout=HANG)
        assert self._answer.status_code == 200
        self.headers = self._answer.headers
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        name = ""
        try:
            for line in self._answer.iter_lines(chunk_size=1):
                if line.startswith(b"event: "):
                    name = line.removeprefix(b"event: ").decode()
                elif line.startswith(b"data: "):
                    with self._heard:
                        self.events.append((name, json.loads(line.removeprefix(b"data: "))))
                        self._heard.notify_all()
        finally:
            self.ended.set()

    def wait_for(self, matches: Callable[[str, dict[str, Any]], bool]) -> dict[str, Any]:
        """The first event that matches, those that have come already included."""

        def found() -> dict[str, Any] | None:
            return next((values for name, values in self.events if matches(name, values)), None)

        with self._heard:
            assert self._heard.wait_for(lambda: found() is not None, HANG), self.events
            values = found()
        assert values is not None
        return values


def test_the_page_and_its_files_are_served(dashboard: Dashboard) -> None:
    page = get(dashboard, "/")
    assert page.headers["content-type"].startswith("text/html")
    files = re.findall(r'(?:href|src)="(static/[^"]+)"', page.text)
    assert len(files) > 5
    for name in files:
        assert get(dashboard, f"/{name}").status_code == 200
    assert "http://" not in page.text.replace(dashboard.url, "")
    assert "https://" not in page.text


class Elements(HTMLParser):
    """The elements of a page, each with its attributes and the text within it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        if tag not in ("meta", "link"):
            self._open.append(self.found[-1][2])

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        for texts in self._open:
            texts.append(data.strip())


def test_before_its_scripts_run_the_page_is_plain_html_and_every_control_has_a_name(dashboard: Dashboard) -> None:
    found = Elements(get(dashboard, "/").text).found
    ids = [attributes["id"] for _, attributes, _ in found if "id" in attributes]
    assert len(ids) == len(set(ids)) > 5
    assert not [attributes for tag, attributes, _ in found if tag == "meta" and "id" in attributes]
    controls = [(attributes, "".join(texts)) for tag, attributes, texts in found if tag in ("a", "button")]
    assert all(text or attributes.get("aria-label") for attributes, text in controls)
    assert {attributes.get("id") for attributes, _ in controls} >= {"home", "theme", "configuration"}


def test_every_answer_carries_a_policy_without_inline_code(dashboard: Dashboard) -> None:
    for path in ("/", "/static/app.js", "/api/state", "/api/invitation", "/nowhere", "/api/history?after=-1"):
        headers = get(dashboard, path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    page = get(dashboard, "/").text
    assert "style=" not in page
    assert "onclick" not in page


def test_the_run_is_told_with_its_fingerprint(dashboard: Dashboard) -> None:
    values = get(dashboard, "/api/run").json()
    assert values["run_id"] == RUN.run_id
    assert values["fingerprint"] == RUN.fingerprint
    told: RunConfig = parse_run(values["run"])
    assert told == RUN


def test_there_is_no_invitation_until_the_coordinator_has_joined(dashboard: Dashboard) -> None:
    answer = get(dashboard, "/api/invitation")
    assert answer.status_code == 503
    assert Refusal.parse(answer.json()) == Refusal(reason="starting")
    assert state_of(dashboard)["refusal"] == "starting"
    dashboard.entrance.give_out(invited(RUN))
    invitation = Invitation.parse(get(dashboard, "/api/invitation").text)
    assert invitation.run_config() == RUN
    state = state_of(dashboard)
    assert (state["refusal"], state["organizer"]) == (None, invitation.organizer)


def test_a_run_is_full_with_as_many_volunteers_as_it_wants_and_its_own_can_come_back(path: Path) -> None:
    dashboard = Dashboard(RUN, path, most_volunteers=1)
    dashboard.entrance.give_out(invited(RUN))
    dashboard.start()
    dashboard.publish(Peers(peers=(COORDINATOR,)))
    assert get(dashboard, "/api/invitation").status_code == 200
    dashboard.publish(Peers(peers=(COORDINATOR, seen("p"))))
    answer = get(dashboard, "/api/invitation?peer=q")
    assert (answer.status_code, Refusal.parse(answer.json())) == (503, Refusal(reason="full"))
    assert state_of(dashboard)["refusal"] == "full"
    assert get(dashboard, "/api/invitation?peer=p").status_code == 200
    assert get(dashboard, "/api/invitation?peer=<p>").status_code == 422
    dashboard.stop()


def test_after_the_last_step_nobody_is_invited(dashboard: Dashboard, path: Path) -> None:
    dashboard.entrance.give_out(invited(RUN))
    record(Ledger(path), 100)
    answer = get(dashboard, "/api/invitation")
    assert (answer.status_code, Refusal.parse(answer.json())) == (410, Refusal(reason="over"))
    assert state_of(dashboard)["refusal"] == "over"


def test_the_wheel_is_served_under_the_address_that_the_requirements_name(dashboard: Dashboard) -> None:
    answer = get(dashboard, "/requirements.txt")
    assert answer.headers["content-type"].startswith("text/plain")
    wheel = running_wheel()
    assert answer.text == f"dedloc_kit @ {dashboard.url}/wheel/{wheel.pinned}\n"
    assert state_of(dashboard)["wheel"] == wheel.pinned
    answer = requests.get(answer.text.split()[-1], timeout=HANG)
    assert answer.content == wheel.content
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-length"] == str(len(wheel.content))
    assert get(dashboard, "/wheel/dedloc_kit-9.9.9-py3-none-any.whl").status_code == 404


def test_the_requirements_name_the_address_at_which_the_dashboard_was_reached(dashboard: Dashboard) -> None:
    headers = {"Host": "tunnel.example.org", "X-Forwarded-Proto": "https"}
    answer = requests.get(dashboard.url + "/requirements.txt", headers=headers, timeout=HANG)
    assert answer.text.startswith("dedloc_kit @ https://tunnel.example.org/wheel/dedloc_kit-")


def test_without_an_installation_the_dashboard_says_why_it_has_no_wheel(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_installed() -> Wheel:
        raise UserError("dedloc_kit was not installed by pip")

    monkeypatch.setattr(join_routes, "running_wheel", not_installed)
    answer = get(dashboard, "/requirements.txt")
    assert (answer.status_code, answer.json()) == (404, {"message": "dedloc_kit was not installed by pip"})
    assert state_of(dashboard)["wheel"] is None


def test_before_there_is_a_ledger_the_run_is_starting(dashboard: Dashboard, path: Path) -> None:
    state = state_of(dashboard)
    assert (state["status"], state["step"], state["samples_total"], state["loss"]) == ("starting", 0, 0, None)
    assert get(dashboard, "/api/history").json() == {"after": 0, "last_step": 0, "steps": [], "evaluations": []}
    assert not path.exists()


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([State(text="loading the model")], "starting"),
        ([joined()], "waiting for volunteers"),
        ([Peers(peers=(COORDINATOR,))], "waiting for volunteers"),
        ([Peers(peers=(COORDINATOR, seen("p")))], "training"),
        ([Peers(peers=(COORDINATOR, seen("p")), paused=True)], "paused"),
        ([Peers(peers=(COORDINATOR, seen("p")), last_step=1)], "training"),
        ([Peers(peers=(COORDINATOR,), last_step=0), Left(step=0, session_samples=0)], "finished"),
        ([Peers(peers=(COORDINATOR,), last_step=0), Peers(peers=(COORDINATOR,))], "waiting for volunteers"),
        ([joined(), Failed(text="out of memory")], "coordinator lost"),
        ([joined(), Left(step=3, session_samples=0)], "coordinator lost"),
        ([joined(), Failed(text="out of memory"), State(text="starting again")], "starting"),
    ],
)
def test_the_status_follows_the_coordinator(dashboard: Dashboard, events: list[AnyEvent], status: str) -> None:
    for event in events:
        dashboard.publish(event)
    assert state_of(dashboard)["status"] == status


def test_a_coordinator_that_has_fallen_silent_is_lost(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard.publish(Peers(peers=(COORDINATOR, seen("p"))))
    monkeypatch.setattr(view, "SILENCE_SECONDS", 0.0)
    assert state_of(dashboard)["status"] == "coordinator lost"


def test_the_run_is_finished_after_its_last_step(dashboard: Dashboard, path: Path) -> None:
    ledger = Ledger(path)
    record(ledger, 100)
    dashboard.publish(Left(step=100, session_samples=0))
    assert state_of(dashboard)["status"] == "finished"


def test_while_the_learning_rate_falls_its_steps_are_counted_and_with_them_the_run_ends(
    dashboard: Dashboard, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, told = Ledger(path), []
    assert state_of(dashboard)["decay"] is None
    dashboard.publish(Peers(peers=(COORDINATOR, seen("p")), decay=Decay(start=3, steps=4), last_step=6))
    for step in range(1, 7):
        record(ledger, step)
        state = state_of(dashboard)
        told.append((state["decay"]["step"], state["decay"]["steps"], state["status"]))
    assert told == [(max(0, step - 2), 4, "training" if step < 6 else "finished") for step in range(1, 7)]
    assert main(["status", dashboard.url]) == 0
    assert "cooldown: step 4 of 4" in capsys.readouterr().out


def test_the_state_tells_what_was_recorded(dashboard: Dashboard, path: Path) -> None:
    ledger = Ledger(path)
    for step in (1, 2, 3):
        record(ledger, step)
    ledger.record_evaluation(1, Evaluation(loss=5.0), 1.0)
    ledger.record_evaluation(3, Evaluation(loss=4.5), 2.0)
    state = state_of(dashboard)
    assert (state["step"], state["samples_total"], state["loss"]) == (3, 192, 3.97)
    assert (state["evaluation"]["first"]["loss"], state["evaluation"]["last"]["loss"]) == (5.0, 4.5)
    assert state["seconds_per_step"] == 5.0
    assert state["contributor_count"] == 1


def test_since_when_a_run_beats_the_model_that_it_goes_on_from_is_told(dashboard: Dashboard, path: Path) -> None:
    ledger, told = Ledger(path), []
    ledger.record_evaluation(0, Evaluation(loss=5.0), 1.0)
    assert state_of(dashboard)["start"] is None
    ledger.record_start(StartPoint("old-1", "us/other", 3.0))
    ledger.record_start(StartPoint("tiny-2", "us/model", 4.5))
    for step, loss in ((10, 4.4), (20, 4.5), (30, 4.3), (40, 4.2)):
        ledger.record_evaluation(step, Evaluation(loss=loss), 1.0)
        told.append(state_of(dashboard)["start"])
    assert told[0] == {"model": "us/model", "loss": 4.5, "better_since": 10}
    assert [each["better_since"] for each in told] == [10, None, 30, 30], "as good is not better, and it must last"
    ledger.record_start(None)
    assert state_of(dashboard)["start"] is None


def test_scores_by_suites_are_told_beside_those_of_published_models(dashboard: Dashboard, path: Path) -> None:
    ledger = Ledger(path)
    assert state_of(dashboard)["suites"] == []
    name = "accuracy of belebele_ukr_Cyrl"
    ledger.record_suites([SuiteScore(name, "them/other", 0, 1.0, 900, 0.4, 0.016)])
    other = {"model": "them/other", "mean": 0.4, "spread": 0.016}
    alone = {"metric": name, "questions": 900, "first": None, "last": None, "references": [other]}
    assert state_of(dashboard)["suites"] == [alone]
    ledger.record_suites([SuiteScore(name, "", step, 1.0, 900, step / 100, None) for step in (10, 20, 30)])
    first, last = ({"step": step, "mean": step / 100, "spread": None} for step in (10, 30))
    assert state_of(dashboard)["suites"] == [{**alone, "first": first, "last": last}]


def test_what_the_model_can_do_is_told_and_pushed(dashboard: Dashboard, path: Path) -> None:
    ledger = Ledger(path)
    viewing = Viewing(dashboard)
    for step, share in ((1, 0.125), (3, 0.5)):
        record(ledger, step)
        sample = FillMask(before="the ", guess=HOSTILE, truth=f"boat {step}", after=" sails")
        evaluation = Evaluation(loss=4.0, metrics={"masked accuracy": share}, samples=(sample,))
        ledger.record_evaluation(step, evaluation, 1.0)
        dashboard.publish(Evaluated(step=step, loss=4.0, metrics=evaluation.metrics))
    change = viewing.wait_for(
        lambda _, values: bool(values.get("evaluation")) and values["evaluation"]["last"]["step"] == 3
    )
    assert "samples" not in change, "these are fetched: whoever looks elsewhere needs none"
    told = {"kind": "fill-mask", "before": "the ", "guess": HOSTILE, "truth": "boat 3", "after": " sails"}
    assert get(dashboard, "/api/samples").json()["moments"][-1] == {"step": 3, "samples": [told]}
    first, last = (state_of(dashboard)["evaluation"][end] for end in ("first", "last"))
    assert (first["metrics"], last["metrics"]) == ({"masked accuracy": 0.125}, {"masked accuracy": 0.5})


def test_the_batch_counts_only_peers_at_the_current_step(dashboard: Dashboard) -> None:
    follower, current = seen("c", step=5, follower=True, rate=0.0), seen("p", samples=16, step=5)
    behind, far_behind = seen("q", samples=50, step=4), seen("r", samples=50, step=3)
    dashboard.publish(Peers(peers=(far_behind, behind, current, follower)))
    state = state_of(dashboard)
    assert state["batch"] == {
        "step": 6,
        "samples": 16,
        "shares": [{"peer": "p", "name": "Asha", "samples": 16}],
        "others": {"peers": 0, "samples": 0},
    }
    assert state["samples_per_second"] == 16.0, "who is one step behind computes as well, who is further behind loads"
    assert state["eta_seconds"] == (64 - 16) / 16.0
    assert state["volunteers"] == 3
    peers = get(dashboard, "/api/peers").json()["peers"]
    lags = [("p", True, 0), ("q", False, 1), ("r", False, 2), ("c", True, 0)]
    assert [(p["peer"], p["current"], p["lag"]) for p in peers] == lags


def test_numbers_that_are_not_finite_do_no_harm(dashboard: Dashboard) -> None:
    dashboard.publish(Peers(peers=(seen("p", samples=1, rate=float("inf")), seen("q", rate=float("nan")))))
    dashboard.publish(Evaluated(step=1, loss=float("nan")))
    peers = get(dashboard, "/api/peers").json()["peers"]
    assert [peer["samples_per_second"] for peer in peers] == [None, None]
    assert state_of(dashboard)["samples_per_second"] == 0.0


def test_a_long_run_is_thinned_to_what_a_chart_can_show(dashboard: Dashboard, path: Path) -> None:
    ledger = Ledger(path)
    ledger._connection.execute("BEGIN")
    ledger._connection.executemany(
        "INSERT INTO steps VALUES (?, 'ab', 0.0, 64, 2.0, 3, 0.5, NULL, NULL, NULL, NULL, NULL)",
        ((step,) for step in range(1, 20_001)),
    )
    ledger._connection.executemany(
        "INSERT INTO evaluations (step, loss, time, metrics, samples, held_out) VALUES (?, 2.0, 0.0, '{}', '[]', '')",
        ((step,) for step in range(10, 20_001, 10)),
    )
    ledger._connection.execute("COMMIT")
    history = get(dashboard, "/api/history").json()
    assert 1000 < len(history["steps"]) + len(history["evaluations"]) <= 2000
    assert history["steps"][-1]["step"] == history["evaluations"][-1]["step"] == history["last_step"] == 20_000
    recent = get(dashboard, "/api/history?after=19990").json()
    assert [step["step"] for step in recent["steps"]] == list(range(19_991, 20_001))
    assert get(dashboard, f"/api/history?after={2**64}").status_code == 422


def test_a_viewer_gets_the_state_first_and_then_what_happens(dashboard: Dashboard, path: Path) -> None:
    viewing = Viewing(dashboard)
    assert viewing.headers["content-type"].startswith("text/event-stream")
    assert viewing.headers["x-accel-buffering"] == "no"
    first = viewing.wait_for(lambda name, values: name == "state")
    assert viewing.events[0][0] == "state"
    assert first["status"] == "starting"
    dashboard.publish(Peers(peers=(COORDINATOR, seen("p", samples=7))))
    change = viewing.wait_for(lambda name, values: name == "change" and values.get("volunteers") == 1)
    assert change["batch"]["samples"] == 7
    assert change["samples_per_second"] == 8.0
    assert "samples_total" not in change  # only what has changed travels
    words = Announcement(text="Half way!", time=1.0)
    dashboard.publish(Peers(peers=(COORDINATOR, seen("p", samples=7)), announcement=words))
    change = viewing.wait_for(lambda name, values: name == "change" and bool(values.get("announcement")))
    assert change["announcement"]["text"] == "Half way!"
    done = record(Ledger(path), 1)
    dashboard.publish(StepDone(step=done, contributions={"p": 64}))
    viewing.wait_for(lambda name, values: name == "change" and values.get("step") == 1)
    history = viewing.wait_for(lambda name, values: name == "history")
    assert [step["step"] for step in history["steps"]] == [1]
    dashboard.publish(Warned(text="the line is slow"))
    viewing.wait_for(
        lambda name, values: any(notice["text"] == "the line is slow" for notice in values.get("notices", []))
    )


def test_what_the_ledger_learns_without_an_event_is_pushed_too(dashboard: Dashboard, path: Path) -> None:
    viewing = Viewing(dashboard)
    ledger = Ledger(path)
    record(ledger, 1)
    record(ledger, 2)
    viewing.wait_for(lambda name, values: name == "history" and values["last_step"] == 2)
    record(ledger, 1, way="b")  # the history was lost with those who knew it
    back = viewing.wait_for(lambda name, values: name == "history" and values["last_step"] == 1 and not values["steps"])
    assert back["after"] == 1


def test_a_second_viewer_is_welcomed_with_the_present_state(dashboard: Dashboard) -> None:
    first = Viewing(dashboard)
    dashboard.publish(Peers(peers=(COORDINATOR, seen("p"))))
    first.wait_for(lambda name, values: values.get("status") == "training")
    second = Viewing(dashboard)
    assert second.wait_for(lambda name, values: name == "state")["status"] == "training"


def test_hostile_names_travel_as_plain_text(dashboard: Dashboard, path: Path) -> None:
    viewing = Viewing(dashboard)
    record(Ledger(path), 1, name=HOSTILE)
    dashboard.publish(Peers(peers=(seen("p", samples=1, step=1, name=HOSTILE),)))
    change = viewing.wait_for(lambda name, values: bool(values.get("batch", {}).get("shares")))
    assert change["batch"]["shares"][0]["name"] == HOSTILE
    answer = get(dashboard, "/api/people")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["people"][0]["name"] == HOSTILE
    static = Path(pages.__file__).parents[1] / "static"
    scripts = [script.read_text() for script in static.rglob("*.js") if "plotly" not in script.name]
    assert len(scripts) > 10
    assert not any("innerHTML" in script or "insertAdjacentHTML" in script for script in scripts)


def test_a_broken_ledger_is_told_without_its_path_and_the_page_goes_on(dashboard: Dashboard, path: Path) -> None:
    path.write_text("my notes\n" * 1000)
    state = state_of(dashboard)
    assert state["problem"] == "the ledger cannot be read"
    assert str(path) not in json.dumps(state)
    path.unlink()
    record(Ledger(path), 1)
    state = state_of(dashboard)
    assert (state["problem"], state["step"]) == (None, 1)


def test_a_ledger_that_is_just_being_created_is_no_problem(dashboard: Dashboard, path: Path) -> None:
    path.touch()
    state = state_of(dashboard)
    assert (state["problem"], state["status"]) == (None, "starting")
    record(Ledger(path), 1)
    assert state_of(dashboard)["step"] == 1


def test_stopping_is_prompt_with_viewers_connected(dashboard: Dashboard) -> None:
    viewers = [Viewing(dashboard) for _ in range(3)]
    for viewing in viewers:
        viewing.wait_for(lambda name, values: name == "state")
    serving = dashboard._thread
    dashboard.stop()
    assert serving is not None
    assert not serving.is_alive()
    for viewing in viewers:
        assert viewing.ended.wait(HANG)
    dashboard.publish(State(text="too late"))
    dashboard.stop()
    with pytest.raises(requests.ConnectionError):
        get(dashboard, "/")


def test_the_port_of_a_dashboard_that_has_stopped_is_free_at_once(path: Path) -> None:
    first = Dashboard(RUN, path)
    first.start()
    viewing = Viewing(first)
    viewing.wait_for(lambda name, values: name == "state")
    first.stop()
    second = Dashboard(RUN, path, port=int(first.url.rsplit(":", 1)[1]))
    second.start()
    assert second.url == first.url
    assert get(second, "/api/state").status_code == 200
    second.stop()


def test_a_port_in_use_is_explained(path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use; choose another with --port"):
            Dashboard(RUN, path, port=port).start()


def test_a_host_that_is_not_ours_is_explained(path: Path) -> None:
    with pytest.raises(UserError, match="use 127"):
        Dashboard(RUN, path, host="no such host").start()
    with pytest.raises(UserError, match="this machine's addresses"):
        Dashboard(RUN, path, host="192.0.2.1").start()


def test_publishing_before_the_start_is_remembered(path: Path) -> None:
    dashboard = Dashboard(RUN, path)
    dashboard.publish(Peers(peers=(COORDINATOR, seen("p"))))
    dashboard.start()
    assert state_of(dashboard)["status"] == "training"
    dashboard.stop()


def test_every_view_has_an_address_and_finds_its_files_from_there(dashboard: Dashboard) -> None:
    for path in ("/", "/people", "/people/p", "/swarm", "/organizer"):
        page = get(dashboard, path)
        assert page.headers["content-type"].startswith("text/html")
        for name in re.findall(r'(?:src|href)="([^"#]+)"', page.text):
            assert requests.get(urljoin(page.url, name), timeout=HANG).status_code == 200, name
    assert get(dashboard, "/people/<p>").status_code == 422


def test_what_the_model_said_on_its_way_is_told_from_the_first_to_the_newest(dashboard: Dashboard, path: Path) -> None:
    ledger = Ledger(path)
    assert get(dashboard, "/api/samples").json() == {"moments": [], "pictures": []}
    for step in range(0, 90, 10):
        sample = FillMask(before="the ", guess=f"guess {step}", truth="boat", after=" sails")
        ledger.record_evaluation(step, Evaluation(loss=4.0, samples=(sample,)), 1.0)
    ledger.record_evaluation(90, Evaluation(loss=4.0), 1.0)  # nothing was tried
    moments = get(dashboard, "/api/samples").json()["moments"]
    assert [moment["step"] for moment in moments] == [0, 20, 40, 60, 80]
    told = {"kind": "fill-mask", "before": "the ", "guess": "guess 80", "truth": "boat", "after": " sails"}
    assert moments[-1]["samples"] == [told]


def test_garbage_collection_passes_over_all_that_stood_before_the_page_was_served(path: Path) -> None:
    before = [["a module's table"]]
    served = Dashboard(RUN, path)
    assert any(each is before for each in gc.get_objects())
    served.start()
    try:
        assert not any(each is before for each in gc.get_objects())
    finally:
        served.stop()


def test_a_ledger_in_whose_place_a_start_has_put_its_copy_is_read_on(dashboard: Dashboard, path: Path) -> None:
    fill(path, steps=2)
    assert state_of(dashboard)["step"] == 2
    copy = path.with_name("copy.sqlite")
    with closing(Ledger(path)) as ledger:
        ledger.copy(copy)
    for file in path.parent.glob("ledger.sqlite*"):
        file.unlink()
    assert state_of(dashboard)["step"] == 2, "what was known stays"
    copy.replace(path)
    fill(path, steps=4)
    assert state_of(dashboard)["step"] == 4
