"""What the API answers, without a server in between where that will do."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from dedloc_kit.dashboard.http import caching
from dedloc_kit.dashboard.http.caching import Answers
from dedloc_kit.dashboard.live import view
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.events import Failed, Peers, PeerSeen, Pushed, Warned
from dedloc_kit.ledger import Conviction, Ledger
from dedloc_kit.records.orders import Announcement, Checks
from dedloc_kit.records.steps import Carried, Contribution, GlobalStep, LeftOut
from tests.dashboard.runs import COORDINATOR, HOSTILE, RUN, joined, seen

NOON = 20_000.5 * 86_400.0  # on 2024-10-04
LISTS = (
    "history",
    "people",
    "people/p",
    "teams",
    "lenders",
    "hosts",
    "peers",
    "regions",
    "rounds",
    "timeline",
    "state",
    "run",
    "standing?peer=p",
)


class Clock:
    time = NOON

    def __call__(self) -> float:
        return self.time


class Recording:
    """A ledger with an easy hand."""

    def __init__(self, path: Path) -> None:
        self.now = Clock()
        self.ledger = Ledger(path, clock=self.now)
        self._given: dict[str, int] = {}
        self._step = 0
        self.names: dict[str, str] = {}
        self.left_out: LeftOut | None = None

    def step(self, **samples: int) -> None:
        """A global step of these peers, a minute after the one before."""
        self._step += 1
        self.now.time += 60.0
        contributions = {}
        for peer, count in samples.items():
            self._given[peer] = self._given.get(peer, 0) + count
            contributions[peer] = Contribution(
                run_id=RUN.run_id,
                step=self._step,
                session="a1",
                samples=count,
                session_samples=self._given[peer],
                loss=4.0 - self._step / 100,
                name=self.names.get(peer, peer.capitalize()),
                time=self.now.time,
            )
        step = GlobalStep(
            step=self._step,
            round=f"{self._step:x}",
            time=self.now.time,
            samples=sum(samples.values()),
            loss=4.0,
            peers=len(samples) + 1,
            seconds=2.5,
            compute=50.0,
            gather=7.0,
            average=2.5,
            apply=0.5,
            left_out=self.left_out,
        )
        self.ledger.record_step(step, contributions)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return Recording(tmp_path / "ledger.sqlite")


@pytest.fixture
def dashboard(tmp_path: Path, recording: Recording) -> Dashboard:
    return Dashboard(RUN, tmp_path / "ledger.sqlite")


@pytest.fixture
def client(dashboard: Dashboard) -> TestClient:
    return TestClient(dashboard._application())


def volunteer(peer: str, **values: Any) -> PeerSeen:
    return seen(peer, name=peer.capitalize()).model_copy(update=values)


def told(client: TestClient, path: str) -> Any:
    answer = client.get(f"/api/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_before_anything_happened_every_list_is_empty(tmp_path: Path) -> None:
    client = TestClient(Dashboard(RUN, tmp_path / "nothing.sqlite")._application())
    assert told(client, "people") == {"total": 0, "samples_total": 0, "people": []}
    assert told(client, "teams") == {"teams": []}
    assert told(client, "peers") == {"step": 0, "total": 0, "peers": []}
    assert told(client, "regions") == {"on": False, "regions": [], "elsewhere": 0, "title": ""}
    assert told(client, "rounds") == {
        "rounds": [],
        "left_out": [],
        "left_out_count": 0,
        "failed": [],
        "failed_count": 0,
        "rejected_count": 0,
        "rejected": [],
        "sent_away": [],
        "sent_away_count": 0,
        "sent_away_now": 0,
    }
    assert told(client, "timeline") == {"visits": []}
    assert client.get("/api/people/p").status_code == 404


def test_people_are_ranked_found_and_shown_in_parts(client: TestClient, recording: Recording) -> None:
    recording.step(asha=30, bo=20, chandra=14)
    recording.now.time += 30 * 86_400.0
    recording.step(bo=10)
    recording.ledger.record_presence([volunteer("bo", team="delta")])
    everyone = told(client, "people")
    assert (everyone["total"], everyone["samples_total"]) == (3, 74)
    assert [(p["peer"], p["rank"], p["samples"], p["steps"]) for p in everyone["people"]] == [
        ("asha", 1, 30, 1),
        ("bo", 2, 30, 2),
        ("chandra", 3, 14, 1),
    ]
    assert everyone["people"][0]["share"] == 30 / 74
    assert [p["peer"] for p in told(client, "people?sort=recent")["people"]] == ["bo", "asha", "chandra"]
    assert [p["peer"] for p in told(client, "people?sort=name&offset=1&limit=1")["people"]] == ["bo"]
    for search in ("CHAN", "chandra"):
        found = told(client, f"people?search={search}")
        assert (found["total"], found["people"][0]["rank"]) == (1, 3)
    assert [p["peer"] for p in told(client, "people?search=delta")["people"]] == ["bo"]
    for wrong in ("sort=luck", "limit=501", "limit=0", "offset=-1", f"search={'x' * 65}"):
        assert client.get(f"/api/people?{wrong}").status_code == 422


def test_a_person_s_page_has_days_visits_and_losses(
    client: TestClient, recording: Recording, dashboard: Dashboard
) -> None:
    asha = volunteer("asha", device="T4")
    recording.ledger.record_presence([asha])
    recording.step(asha=64)
    recording.ledger.record_presence([asha])
    recording.now.time += 86_400.0
    recording.ledger.record_presence([])
    recording.ledger.record_presence([asha])
    recording.step(asha=64)
    dashboard.publish(Peers(peers=(COORDINATOR, asha)))
    page = told(client, "people/asha")
    assert page["person"]["active"]
    assert (page["person"]["sessions"], page["person"]["seconds"], page["person"]["devices"]) == (1, 60.0, ["T4"])
    assert page["days"] == [{"day": "2024-10-04", "samples": 64}, {"day": "2024-10-05", "samples": 64}]
    assert page["visits"] == [
        {"since": NOON + 60 + 86_400, "until": None, "device": "T4", "samples": 64},
        {"since": NOON, "until": NOON + 60, "device": "T4", "samples": 64},
    ]
    assert page["losses"] == [[1, 3.99], [2, 3.98]]
    visits = told(client, "timeline")["visits"]
    assert [(visit["name"], visit["until"]) for visit in visits] == [("Asha", None), ("Asha", NOON + 60)]
    dashboard.publish(Failed(text="out of memory"))
    assert told(client, "timeline?limit=1")["visits"][0]["until"] is not None, "nobody knows who is there"
    assert client.get("/api/people/nobody").json() == {
        "message": "nobody with this peer id has given anything to this run yet"
    }
    assert client.get("/api/people/%3Cp%3E").status_code == 422


def test_teams_add_up_what_their_members_gave(client: TestClient, recording: Recording) -> None:
    recording.step(asha=30, bo=20, chandra=14)
    recording.ledger.record_presence([volunteer("asha", team="delta"), volunteer("bo", team="delta")])
    (team,) = told(client, "teams")["teams"]
    assert (team["team"], team["samples"], team["members"]) == ("delta", 50, 2)


def test_lent_lines_stand_beside_the_people_and_in_no_sum_of_theirs(
    client: TestClient, recording: Recording, dashboard: Dashboard
) -> None:
    assert told(client, "lenders") == {"lenders": []}
    recording.step(asha=64)
    step = GlobalStep(step=2, round="b2", time=1.0, samples=0, loss=None, peers=2, seconds=7.0)
    carried = {"Qm1": Carried(bytes=10**9, name=HOSTILE), "Qm2": Carried(bytes=5, name="bo")}
    recording.ledger.record_step(step.model_copy(update={"carried": carried}), {})
    dashboard.publish(Peers(peers=(seen("Qm2", follower=True),)))
    first, second = told(client, "lenders")["lenders"]
    assert (first["peer"], first["name"], first["bytes"], first["seconds"]) == ("Qm1", HOSTILE, 10**9, 7.0)
    assert [first["active"], second["active"]] == [False, True]
    assert [person["peer"] for person in told(client, "people")["people"]] == ["asha"]
    assert told(client, "people")["samples_total"] == 64


def test_peers_tell_how_they_are_connected_and_how_far_behind_they_are(
    client: TestClient, recording: Recording, dashboard: Dashboard
) -> None:
    recording.step(asha=64)
    asha = volunteer("asha", step=1, upload=2e6, team="delta")
    recording.ledger.record_presence([asha])
    dashboard.publish(Peers(peers=(COORDINATOR.model_copy(update={"step": 1}), volunteer("bo"), asha)))
    peers = told(client, "peers")
    assert peers["step"] == 1
    first, second, third = peers["peers"]
    assert (first["peer"], first["mode"], first["upload"], first["since"]) == ("asha", "client", 2e6, NOON + 60)
    assert (first["team"], first["lag"], first["current"]) == ("delta", 0, True)
    assert (second["peer"], second["lag"], second["current"], second["since"]) == ("bo", 1, False, None)
    assert (third["mode"], third["follower"]) == ("full", True)


def test_countries_are_told_as_numbers_only_and_only_where_the_organizer_wants_it(
    client: TestClient, dashboard: Dashboard
) -> None:
    here = Peers(peers=(COORDINATOR, *(volunteer(name) for name in ("asha", "bo", "cy", "di"))))
    off = {"on": False, "regions": [], "elsewhere": 0, "title": ""}
    dashboard.publish(here)
    assert told(client, "regions") == off
    before = told(client, "peers"), told(client, "state")
    dashboard.publish(here.model_copy(update={"countries": {"BD": 1, "IN": 2}, "countries_title": "Atlas"}))
    counted = [{"country": "IN", "volunteers": 2}, {"country": "BD", "volunteers": 1}]
    assert told(client, "regions") == {"on": True, "regions": counted, "elsewhere": 1, "title": "Atlas"}
    assert (told(client, "peers"), told(client, "state")) == before, "nowhere else"
    dashboard.publish(Failed(text="the coordinator stopped"))
    assert told(client, "regions") == off


def test_rounds_tell_where_their_time_went_and_what_went_wrong(client: TestClient, recording: Recording) -> None:
    for _ in range(3):
        recording.step(asha=64)
    recording.ledger.record_trouble("failed", "QmX fell silent", step=4)
    recording.ledger.record_trouble("rejected", "Progress: samples", count=8)
    rounds = told(client, "rounds?after=2")
    (last,) = rounds["rounds"]
    assert last == {
        **{"step": 3, "time": NOON + 180, "samples": 64, "peers": 2, "seconds": 2.5},
        **{"compute": 50.0, "gather": 7.0, "average": 2.5, "apply": 0.5, "left_out": 0},
    }
    assert (rounds["failed_count"], rounds["rejected_count"]) == (1, 8)
    assert rounds["failed"] == [{"time": NOON + 180, "step": 4, "text": "QmX fell silent"}]
    assert rounds["rejected"][0]["text"] == "Progress: samples"


def test_rounds_tell_who_was_left_out_and_why_by_name_where_that_is_known(
    client: TestClient, recording: Recording
) -> None:
    recording.step(asha=64)
    recording.left_out = LeftOut(count=30, some={"asha": "fell silent", "QmBo": "did not come"})
    recording.step(bo=64)
    recording.left_out = None
    recording.ledger.record_step(
        GlobalStep(step=3, round="ab", time=1.0, samples=8, loss=1.0, peers=2, seconds=0.0), {}
    )
    rounds = told(client, "rounds")
    assert [seen["left_out"] for seen in rounds["rounds"]] == [0, 30, None], "of the last one nothing is known"
    some = [
        {"peer": "asha", "name": "Asha", "why": "fell silent"},
        {"peer": "QmBo", "name": None, "why": "did not come"},
    ]
    assert rounds["left_out"] == [{"step": 2, "time": NOON + 120, "count": 30, "some": some}]
    assert rounds["left_out_count"] == 30


def test_who_was_sent_away_is_told_with_the_reason_and_marked_until_it_is_let_in_again(
    client: TestClient, recording: Recording, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording.step(asha=64, bo=64)
    dashboard.publish(Peers(peers=(volunteer("bo"),), checks=Checks(passed=7, share=0.3, alarm=12)))
    state = told(client, "state")
    assert state["checks"].startswith("3 in 10 contributions are checked since somebody was sent away 12 steps ago: 7")
    assert state["audits"] == {"passed": 7, "given_up": 0, "convicted": 0, "share": 0.3, "alarm": 12}
    asha, bo = Conviction("asha", NOON, "Asha", "it lied"), Conviction("bo", NOON + 9, "Bo", "it hid")
    recording.ledger.record_convictions([asha, bo])
    away = {person["peer"] for person in told(client, "people")["people"] if person["sent_away"]}
    assert away == {"asha", "bo"}
    recording.ledger.record_convictions([bo])
    monkeypatch.setattr(view, "SENT_AWAY", 1)
    rounds = told(client, "rounds")
    assert (rounds["sent_away_count"], rounds["sent_away_now"]) == (2, 1)
    assert rounds["sent_away"] == [
        {"peer": "bo", "name": "Bo", "time": NOON + 9, "why": "it hid", "lifted": None, "last_passed": None}
    ]
    monkeypatch.setattr(view, "SENT_AWAY", 9)
    recording.step(asha=64)
    assert [one["lifted"] for one in told(client, "rounds")["sent_away"]] == [None, NOON + 60]
    assert [told(client, f"people/{peer}")["person"]["sent_away"] for peer in ("asha", "bo")] == [False, True]


def test_the_people_their_teams_and_their_share_are_without_what_a_convicted_one_gave_since_it_was_found_right(
    client: TestClient, recording: Recording
) -> None:
    recording.step(asha=30, bo=30)
    recording.step(asha=10, bo=30)
    for peer in ("asha", "bo", "chandra"):
        recording.ledger.record_presence([volunteer(peer, team="delta")])
    recording.step(chandra=20)
    recording.ledger.record_convictions(
        [
            Conviction("bo", NOON, "Bo", "it lied", last_passed=1),
            Conviction("chandra", NOON, "C", "it lied", last_passed=0),
        ]
    )
    everyone = told(client, "people")
    assert [(p["peer"], p["samples"], p["steps"]) for p in everyone["people"]] == [("asha", 40, 2), ("bo", 30, 1)]
    assert (everyone["total"], everyone["samples_total"]) == (2, 120), "the model learned from all of them"
    assert everyone["people"][0]["share"] == 40 / 120
    assert [(team["samples"], team["members"]) for team in told(client, "teams")["teams"]] == [(70, 2)]
    state = told(client, "state")
    assert (state["samples_total"], state["contributor_count"]) == (120, 2)
    assert told(client, "standing?peer=bo")["samples"] == 30
    assert client.get("/people/bo/certificate.svg").status_code == 200
    assert client.get("/people/chandra/certificate.svg").status_code == 404


def test_hundreds_of_peers_are_told_in_parts(client: TestClient, dashboard: Dashboard) -> None:
    dashboard.publish(Peers(peers=(COORDINATOR, *(volunteer(f"p{number:03}") for number in range(300)))))
    pages = [told(client, f"peers?offset={offset}&limit=50") for offset in range(0, 350, 50)]
    assert {page["total"] for page in pages} == {301}
    assert [len(page["peers"]) for page in pages] == [50] * 6 + [1]
    assert [peer["peer"] for page in pages for peer in page["peers"]] == [
        peer["peer"] for peer in told(client, "peers")["peers"]
    ]


def test_the_state_stays_small_whatever_the_number_of_peers(
    client: TestClient, recording: Recording, dashboard: Dashboard
) -> None:
    recording.step(**{f"p{number}": 1 for number in range(300)})
    peers = [volunteer(f"Qm{number:044}", step=1, samples=number, name="Asha from Bangalore") for number in range(1000)]
    dashboard.publish(Peers(peers=tuple(peers)))
    for _ in range(20):
        dashboard.publish(Warned(text="a line " * 1000))
    answer = client.get("/api/state")
    assert len(answer.content) < 6_000
    batch = answer.json()["batch"]
    assert [share["samples"] for share in batch["shares"]] == list(range(999, 975, -1))
    assert batch["others"] == {"peers": 976, "samples": sum(range(976))}


def test_the_state_knows_the_end_the_announcement_and_the_checkpoint(
    client: TestClient, recording: Recording, dashboard: Dashboard
) -> None:
    for _ in range(3):
        recording.step(asha=64)
    dashboard.publish(joined())
    assert told(client, "state")["run_eta_seconds"] is None, "nobody trains"
    announcement = Announcement(text="A talk at noon", time=5.0)
    dashboard.publish(Peers(peers=(volunteer("asha"),), announcement=announcement))
    dashboard.publish(Pushed(step=2, url="https://huggingface.co/us/model/commit/1"))
    state = told(client, "state")
    assert (state["run_eta_seconds"], state["seconds_per_step"]) == (97 * 60.0, 60.0)
    assert state["announcement"] == {"text": "A talk at noon", "time": 5.0}
    assert state["checkpoint"] == {"step": 2, "url": "https://huggingface.co/us/model/commit/1"}
    dashboard.publish(Peers(peers=(volunteer("asha"),)))
    assert told(client, "state")["announcement"] is None


def test_the_revision_grows_with_news_and_not_too_often(
    dashboard: Dashboard, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(view, "time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: NOON + now[0]))
    asked = dashboard._view

    def revision() -> int:
        return asked.state().revision

    recording.step(asha=64)
    first = revision()
    recording.step(asha=64)
    assert revision() == first, "not yet"
    now[0] += view.REVISION_SECONDS
    second = revision()
    assert second > first
    now[0] += view.REVISION_SECONDS
    assert revision() == second, "nothing has happened"
    dashboard.publish(Peers(peers=(volunteer("asha"),)))
    third = revision()
    assert third > second
    now[0] += view.REVISION_SECONDS
    dashboard.publish(Peers(peers=(volunteer("asha"),)))
    assert revision() == third, "the same peers are no news"


def test_every_answer_is_the_one_that_the_description_promises(
    client: TestClient, recording: Recording, dashboard: Dashboard
) -> None:
    recording.step(p=64)
    dashboard.publish(Peers(peers=(volunteer("p"),)))
    description = dashboard._application().openapi()
    for path in LISTS:
        route = description["paths"]["/api/" + path.partition("?")[0].replace("people/p", "people/{peer}")]
        reference = route["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        assert set(told(client, path)) == set(
            description["components"]["schemas"][reference.split("/")[-1]]["properties"]
        )


def test_an_answer_that_is_not_new_is_not_sent_again(client: TestClient, recording: Recording) -> None:
    recording.step(**{f"p{number}": 1 for number in range(64)})
    first = client.get("/api/people", headers={"Accept-Encoding": "gzip"})
    assert first.headers["content-encoding"] == "gzip"
    assert int(first.headers["content-length"]) < len(first.content) / 3
    again = client.get("/api/people", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    recording.step(asha=64)
    again = client.get("/api/people", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 200
    plain = client.get("/api/people", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.json() == again.json()


class Value(BaseModel):
    number: int


def request(path: str, query: str = "") -> Any:
    return SimpleNamespace(url=SimpleNamespace(path=path, query=query), headers={"accept-encoding": "gzip"})


def test_many_who_ask_at_once_cost_one_computation() -> None:
    version, made = [1], []
    asked, answered = threading.Barrier(20), []

    def make() -> Value:
        made.append(version[0])
        time.sleep(0.05)  # the others have come in the meantime
        return Value(number=version[0])

    kept = Answers(lambda: version[0])

    def ask() -> None:
        asked.wait(timeout=10)
        answered.append(bytes(kept.answer(request("/api/x"), make).body))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert (made, set(answered), len(answered)) == ([1], {b'{"number":1}'}, 20)
    version[0] = 2
    assert kept.answer(request("/api/x"), make).body == b'{"number":2}'


def test_who_asks_for_ever_new_parts_does_not_fill_the_memory() -> None:
    kept = Answers(lambda: 1)
    for number in range(10 * caching.MAX_ANSWERS):
        kept.answer(request("/api/x", f"offset={number}"), lambda: Value(number=1))
    assert len(kept._answers) == caching.MAX_ANSWERS


def test_hostile_names_stay_text_in_every_list(client: TestClient, recording: Recording, dashboard: Dashboard) -> None:
    recording.names["p"] = HOSTILE
    recording.step(p=64)
    evil = volunteer("p", name=HOSTILE, team=HOSTILE, device=HOSTILE)
    recording.ledger.record_presence([evil])
    dashboard.publish(Peers(peers=(evil,)))
    for path, where, key in (
        ("people", "people", "name"),
        ("people/p", "visits", "device"),
        ("teams", "teams", "team"),
        ("peers", "peers", "team"),
        ("timeline", "visits", "name"),
    ):
        answer = client.get(f"/api/{path}")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()[where][0][key] == HOSTILE


def test_a_training_that_has_diverged_is_the_runs_problem_until_it_is_over(
    client: TestClient, dashboard: Dashboard
) -> None:
    for told, shown in [("the training has diverged: so", "the training has diverged: so"), ("", None)]:
        dashboard.publish(Peers(peers=(seen("Qm1").model_copy(update={"skipped": 40}),), problem=told))
        assert client.get("/api/state").json()["problem"] == shown
    assert "skipped" not in client.get("/api/peers").json()["peers"][0]


def test_what_volunteers_cannot_use_of_the_data_is_one_notice(client: TestClient, dashboard: Dashboard) -> None:
    def notices(*lost: tuple[int, int, int]) -> list[str]:
        peers = [
            seen(f"Qm{number}").model_copy(update={"files": files, "unreadable_files": unreadable, "bad_rows": rows})
            for number, (files, unreadable, rows) in enumerate(lost)
        ]
        dashboard.publish(Peers(peers=tuple(peers)))
        return [notice["text"] for notice in client.get("/api/state").json()["notices"]]

    assert notices((0, 0, 0), (0, 0, 0)) == []
    assert notices(*[(40, 2, 0)] * 7, (0, 0, 0)) == ["2 of 40 files of the data cannot be read by 7 volunteers"]
    # One that lies does not decide, nor one whose numbers cannot be.
    assert notices((4, 1, 3), (4, 1, 5), (10**12, 10**12, 10**12), (1, 2, 0)) == [
        "1 of 4 files of the data cannot be read by 3 volunteers; 5 rows of the data left out by 3 volunteers"
    ]
    assert notices((0, 0, 1)) == ["1 row of the data left out by 1 volunteer"]
    assert notices((0, 0, 0)) == []
