"""Who asks too often is told to wait, and nobody else notices."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from starlette.applications import Starlette

from dedloc_kit.dashboard.http import limits
from dedloc_kit.dashboard.http.limits import COSTLY, MAX_SENT, READING, Limit, RateLimits, limit_of
from dedloc_kit.dashboard.run_dashboard import Dashboard
from tests.dashboard.runs import RUN


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    served = Dashboard(RUN, tmp_path / "ledger.sqlite")
    served.start()
    yield served
    served.stop()


def get(dashboard: Dashboard, path: str, address: str = "") -> requests.Response:
    headers = {"X-Forwarded-For": address} if address else {}
    return requests.get(dashboard.url + path, headers=headers, timeout=20)


def test_who_asks_too_often_is_told_when_to_come_back(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COSTLY", Limit(2, 0.1, 16))
    path = "/api/export/people.csv"
    assert [get(dashboard, path).status_code for _ in range(3)] == [404, 404, 429]
    answer = get(dashboard, path)
    seconds = int(answer.headers["retry-after"])
    assert 0 < seconds <= 10
    assert answer.json() == {"message": f"too many requests; try again in {seconds} s"}
    assert "content-security-policy" in answer.headers
    assert get(dashboard, "/api/state").status_code == 200, "what costs little goes on"


def test_behind_a_proxy_of_this_machine_each_viewer_has_an_allowance(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READING", Limit(1, 0.1, 16))
    asked = [get(dashboard, "/", address).status_code for address in ("1.2.3.4", "1.2.3.5", "1.2.3.4")]
    assert asked == [200, 200, 429]
    household = ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1")
    assert [get(dashboard, "/", address).status_code for address in household] == [200, 429, 200]
    # A proxy that passes on whatever it was told does not open as many allowances as there are words.
    assert [get(dashboard, "/", word).status_code for word in ("<b>", "a" * 3_000)] == [200, 429]


def test_viewers_leave_volunteers_and_the_organizer_their_own_allowance(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "READING", Limit(1, 0.01, 16))
    assert [get(dashboard, "/").status_code for _ in range(2)] == [200, 429]
    paths = "/api/invitation", "/requirements.txt", "/wheel/none.whl", "/organizer/login", "/api/organizer"
    asked = {path: get(dashboard, path).status_code for path in paths}
    assert 429 not in asked.values(), asked
    monkeypatch.setattr(limits, "ENTRANCE", Limit(1, 0.01, 16))
    assert [get(dashboard, path).status_code for path in paths[:2]][1] == 429, "which has an end too"
    assert get(dashboard, "/", "1.2.3.4").status_code == 200


def test_an_allowance_comes_back_with_time() -> None:
    bucket, limit = RateLimits(Starlette()), Limit(2, 0.5, 16)
    assert [bucket.wait("a", limit, now) for now in (0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 100.0, 100.0, 100.0)] == [
        *(0, 0, 2, 1, 0, 2),
        *(0, 0, 2),
    ]


def test_the_oldest_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_REMEMBERED", 3)
    bucket, limit = RateLimits(Starlette()), Limit(1, 0.1, 16)
    assert [bucket.wait(address, limit, 0.0) for address in "abcdd"] == [0, 0, 0, 0, 10]
    assert bucket.wait("a", limit, 0.0) == 0
    assert len(bucket._buckets) == 3


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/api/people", READING),
        ("/", READING),
        ("/people/p/certificate.svg", READING),
        ("/api/export/people.csv", COSTLY),
    ],
)
def test_what_costs_more_has_a_smaller_allowance(path: str, limit: Limit) -> None:
    assert limit_of(path) == limit


def test_nobody_can_fill_the_memory_with_what_they_send(dashboard: Dashboard) -> None:
    url = dashboard.url + "/api/state"
    long = requests.post(url, data=b"x" * (MAX_SENT + 1), timeout=20)
    endless = requests.post(url, data=iter([b"x"]), timeout=20)
    usual = requests.post(url, data=b"x" * MAX_SENT, timeout=20)
    assert [answer.status_code for answer in (long, endless, usual)] == [413, 411, 405]
    assert list(long.json()) == ["message"]
    assert "content-security-policy" in long.headers


def test_a_class_behind_one_address_can_watch() -> None:
    """500 pages of 30 files each at once, and then every page a list every three seconds."""
    assert READING.burst >= 500 * 30
    assert READING.per_second >= 500 / 3
