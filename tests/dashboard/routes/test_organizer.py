"""How the organizer logs in and steers the run, and that nobody else does."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from dedloc_kit.config.loading import parse_run
from dedloc_kit.dashboard.http import login
from dedloc_kit.dashboard.http.login import KEY_FILE, Keys
from dedloc_kit.dashboard.routes import organizer
from dedloc_kit.dashboard.routes.organizer import kept_checkpoints
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.errors import UserError
from dedloc_kit.events import Joined
from dedloc_kit.learning.train.state.ruined import Ruined
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.steps import GlobalStep
from dedloc_kit.steering.alerts import Alerts
from dedloc_kit.steering.orders import OrderBook, Orders, Rewinding
from tests.hang import HANG
from tests.invitations import invited

RUN = parse_run(
    {
        "name": "demo",
        "global_batch": 64,
        "task": {"name": "albert"},
        "data": {"train": [{"dataset": "owner/name"}]},
        "optimizer": {"total_steps": 100, "warmup_steps": 10, "schedule": "warmup-stable-decay"},
    }
)
PEER = "Qm" + "a" * 44
ORDERS = {
    "cooldown": {"steps": 20},
    "pause": None,
    "resume": None,
    "finish": None,
    "checkpoint": None,
    "kick": {"peer": PEER},
    "unban": {"peer": PEER},
    "announce": {"text": "Half way!"},
    "rollback": {"step": 2, "rate": 0.5},
}


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    """Of a run that is up, with the checkpoints of steps 2 and 4, the latter of a training that had diverged."""
    (tmp_path / "invitation.json").write_text(invited(RUN).model_dump_json())
    keep_checkpoints(tmp_path, 2, 4)
    Ruined(tmp_path / "checkpoints").judge(4, False)
    routes = organizer.routes(tmp_path, RUN.fingerprint, decays=True)
    served = Dashboard(RUN, tmp_path / "ledger.sqlite", organizer=routes)
    served.start()
    with peer_folder(tmp_path):
        yield served
    served.stop()


def keep_checkpoints(folder: Path, *steps: int) -> None:
    (folder / "checkpoints").mkdir()
    for step in steps:
        (folder / "checkpoints" / f"step-{step:08d}.safetensors").write_bytes(b"x" * step)


@pytest.fixture
def browser(dashboard: Dashboard, tmp_path: Path) -> requests.Session:
    """Logged in as the organizer."""
    session = requests.Session()
    answer = session.get(Keys(tmp_path).link(dashboard.url), timeout=HANG, allow_redirects=False)
    assert answer.status_code == 303
    return session


def give(
    where: Dashboard, browser: requests.Session, order: str, body: Any = None, **headers: str
) -> requests.Response:
    url = f"{where.url}/api/organizer/{order}"
    return browser.post(url, json={} if body is None else body, headers=headers, timeout=HANG)


def test_the_link_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(
    dashboard: Dashboard, tmp_path: Path
) -> None:
    answer = requests.get(Keys(tmp_path).link(dashboard.url), timeout=HANG, allow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, "../organizer")
    cookie = answer.headers["Set-Cookie"].lower()
    assert cookie.startswith(f"organizer-{RUN.fingerprint}=")
    for attribute in ("httponly", "samesite=strict", "path=/", "max-age="):
        assert attribute in cookie
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


def test_the_organizer_sees_orders_alerts_and_checkpoints_the_newest_first(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    alerts = Alerts(tmp_path, 10, 60.0, lambda _: None)
    for step in (1, 2):
        alerts.hear(Joined(run_id="r", peer="c", session="a", addresses=(), step=step, device="CPU", parameters=1))
    give(dashboard, browser, "pause")
    values = give(dashboard, browser, "announce", {"text": "Half way!"}).json()
    assert values == browser.get(f"{dashboard.url}/api/organizer", timeout=HANG).json()
    assert (values["paused"], values["finishing"], values["announcement"]["text"]) == (True, False, "Half way!")
    assert [order["order"] for order in values["orders"]] == ["announce", "pause"]
    assert [alert["text"] for alert in values["alerts"]] == [
        f"the coordinator has started again, at global step {step}" for step in (2, 1)
    ]
    assert [(kept["step"], kept["ruined"]) for kept in values["checkpoints"]] == [(4, True), (2, False)]
    assert values["kicked"] == []


def test_the_organizer_sees_what_shows_that_somebody_cheated_and_nobody_else_does(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    book = OrderBook(tmp_path)
    book.kick("QmAnna", "anna")
    book.kick("QmBo", "bo", "it lied", last_passed=4)
    book.kick("QmCy", "cy", "it hid")
    (tmp_path / "evidence").mkdir()
    for name in ("19-QmBo", "11-QmBo", "12-QmAnna"):
        (tmp_path / "evidence" / f"{name}.jsonl").touch()
    values = browser.get(f"{dashboard.url}/api/organizer", timeout=HANG).json()
    assert [(one["name"], one["why"], one["evidence"]) for one in values["kicked"]] == [
        ("cy", "it hid", None),
        ("bo", "it lied", "evidence/19-QmBo.jsonl"),
        ("anna", "", None),
    ]
    assert requests.get(f"{dashboard.url}/api/organizer", timeout=HANG).status_code == 401
    for page in ("rounds", "people", "state"):
        assert "jsonl" not in requests.get(f"{dashboard.url}/api/{page}", timeout=HANG).text


def test_every_order_is_given_and_answered_with_how_things_stand_then(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    book = OrderBook(tmp_path)
    for order, body in ORDERS.items():
        if order == "rollback":  # not of a run that has been finished
            book.resume()
        answer = give(dashboard, browser, order, body, Origin=dashboard.url)
        assert answer.status_code == 200, answer.text
        values, orders = answer.json(), book.read()
        assert (values["paused"], values["finishing"]) == (orders.paused, orders.finish)
        assert {kicked["peer"] for kicked in values["kicked"]} == orders.kicked_peers
        # A rewind to before the decay lifts that order.
        assert (values["decays"], values["decay"]) == (True, None if order == "rollback" else {"steps": 20, "after": 4})
    assert [given.order for given in book.given() if given.order != "resume"] == [
        order for order in reversed(ORDERS) if order != "resume"
    ]


def test_the_run_goes_back_by_the_page_as_by_the_command_and_it_is_seen_until_that_is_done(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    given = Rewinding(checkpoint=2, rate=0.5, after=4)
    values = give(dashboard, browser, "rollback", {"step": 2, "rate": 0.5}).json()
    assert OrderBook(tmp_path).read().rewind == given
    assert values["rewind"] == given.model_dump()
    refused = give(dashboard, browser, "rollback", {"step": 0})
    assert refused.status_code == 409
    assert "the rollback to step 2 that was ordered before is not done yet" in refused.json()["message"]
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.record_step(GlobalStep(step=5, round="ab", time=1.0, samples=0, loss=None, peers=0, seconds=0.0), {})
    ledger.close()
    assert browser.get(f"{dashboard.url}/api/organizer", timeout=HANG).json()["rewind"] is None
    assert give(dashboard, browser, "rollback", {"step": 0}).json()["rewind"]["rate"] == 1.0


def test_nobody_else_sees_or_orders_anything(dashboard: Dashboard, tmp_path: Path) -> None:
    stranger, keys = requests.Session(), Keys(tmp_path)
    for order, body in ORDERS.items():
        assert give(dashboard, stranger, order, body).status_code == 401
    for cookie in ("1999999999.00", keys._signed("link", 60.0), keys._signed("cookie", -1.0)):
        stranger.cookies.set(f"organizer-{RUN.fingerprint}", cookie)
        assert stranger.get(f"{dashboard.url}/api/organizer", timeout=HANG).status_code == 401
        answer = give(dashboard, stranger, "pause")
        assert answer.status_code == 401
        assert "dedloc run admin-link" in answer.json()["message"]
    assert OrderBook(tmp_path).read() == Orders()


def test_an_order_from_another_sites_page_is_refused(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    for origin in ("https://evil.example", "null", "http://127.0.0.1", "http://["):
        for order in ("pause", "kick"):
            assert give(dashboard, browser, order, ORDERS[order], Origin=origin).status_code == 403
    assert OrderBook(tmp_path).read() == Orders()


def test_a_wrong_an_expired_and_another_runs_link_do_not_log_in(dashboard: Dashboard, tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    for key in (
        "",
        "x",
        "é.ü",
        "9" * 200,
        keys._signed("link", -1),
        keys.cookie(),
        Keys(tmp_path / "other")._signed("link", 60),
    ):
        answer = requests.get(f"{dashboard.url}/organizer/login", params={"key": key}, timeout=HANG)
        assert answer.status_code == 401
        assert "dedloc run admin-link" in answer.text
        assert "Set-Cookie" not in answer.headers


def test_guessing_is_slowed_down_and_does_not_lock_the_organizer_out(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    statuses = [
        requests.get(f"{dashboard.url}/organizer/login?key={n}", timeout=HANG).status_code
        for n in range(login.WRONG_PER_MINUTE + 2)
    ]
    assert statuses == [401] * login.WRONG_PER_MINUTE + [429] * 2
    forged = requests.get(
        f"{dashboard.url}/api/organizer", cookies={f"organizer-{RUN.fingerprint}": "1999999999.00"}, timeout=HANG
    )
    assert forged.status_code == 429
    assert give(dashboard, browser, "pause").status_code == 200
    assert requests.get(Keys(tmp_path).link(dashboard.url), timeout=HANG, allow_redirects=False).status_code == 303
    assert requests.get(f"{dashboard.url}/api/organizer", timeout=HANG).status_code == 401, "no guess, no delay"


def test_a_browser_forgets_a_cookie_that_is_worth_nothing(dashboard: Dashboard) -> None:
    cookie = {f"organizer-{RUN.fingerprint}": "1999999999.00"}
    answer = requests.get(f"{dashboard.url}/api/organizer", cookies=cookie, timeout=HANG)
    assert answer.status_code == 401
    assert "Max-Age=0" in answer.headers["Set-Cookie"]


def test_an_order_that_makes_no_sense_changes_nothing(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    for order, body, status in (
        ("announce", {"text": "x" * 201}, 422),
        ("announce", {"text": "\x1b[31m"}, 422),
        ("announce", {}, 422),
        ("kick", {"peer": ""}, 422),
        ("kick", {"peer": "../../etc"}, 422),
        ("kick", {"peer": PEER, "also": 1}, 422),
        ("kick", {"peer": "nobody"}, 409),
        ("unban", {"peer": PEER}, 200),
        ("rollback", {"step": 3, "rate": 0.5}, 409),
        ("rollback", {"step": 4, "rate": 0.5}, 409),
        ("rollback", {"step": 2, "rate": 0}, 422),
        ("rollback", {"step": 2, "rate": 10.1}, 422),
        ("rollback", {"step": -1}, 422),
        ("rollback", {"step": 2, "also": 1}, 422),
        ("explode", {}, 422),
        ("cooldown", {"steps": 0}, 422),
        ("cooldown", {"steps": 101}, 409),
    ):
        assert give(dashboard, browser, order, body).status_code == status, (order, body)
    assert OrderBook(tmp_path).read() == Orders()


def test_damaged_orders_are_said_to_the_organizer(
    dashboard: Dashboard, browser: requests.Session, tmp_path: Path
) -> None:
    (tmp_path / "orders.json").write_text("{")
    for answer in (browser.get(f"{dashboard.url}/api/organizer", timeout=HANG), give(dashboard, browser, "pause")):
        assert answer.status_code == 409
        assert "is damaged" in answer.json()["message"]


def test_without_an_organizer_there_is_nothing_to_log_in_to(tmp_path: Path) -> None:
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    served.start()
    try:
        for path in ("/api/organizer", "/organizer/login?key=x"):
            assert requests.get(served.url + path, timeout=HANG).status_code == 404
    finally:
        served.stop()


def test_the_secret_is_for_its_owner_only_and_stays(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    key = urlsplit(keys.link("http://x")).query.removeprefix("key=")
    (tmp_path / KEY_FILE).chmod(0o644)
    assert Keys(tmp_path).opens(key), "a restart keeps links alive"
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    (tmp_path / KEY_FILE).unlink()
    assert not Keys(tmp_path).opens(key), "a new secret ends them"


def test_a_damaged_secret_is_named_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_text("short")
    with pytest.raises(UserError, match="remove it"):
        Keys(tmp_path)


def test_checkpoints_are_listed_with_what_is_known_of_them(tmp_path: Path) -> None:
    keep_checkpoints(tmp_path, 3, 12, 20)
    folder = tmp_path / "checkpoints"
    (folder / "step-00000009.safetensors.damaged").touch()
    (folder / "best.json").write_text('{"step": 3, "loss": 1.5}')
    ledger = Ledger(tmp_path / "ledger.sqlite")
    for step, loss in ((3, 1.5), (9, 1.25), (20, 7.0)):
        ledger.record_evaluation(step, Evaluation(loss=loss), 1.0)
    ledger.close()
    Ruined(folder).judge(20, False)
    found = [(kept.step, kept.bytes, kept.best, kept.loss, kept.ruined) for kept in kept_checkpoints(tmp_path)]
    assert found == [(20, 20, False, 7.0, True), (12, 12, False, None, False), (3, 3, True, 1.5, False)]
    (folder / "best.json").write_text("[]")
    assert not any(checkpoint.best for checkpoint in kept_checkpoints(tmp_path))
    assert kept_checkpoints(tmp_path / "none") == []
