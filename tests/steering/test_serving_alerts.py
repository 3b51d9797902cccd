"""What whoever began to serve a model is alerted to."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from dedloc_kit.events import AnyEvent, Failed
from dedloc_kit.steering import serving_alerts
from dedloc_kit.steering.alerts import Alert, raised_alerts
from dedloc_kit.steering.debounce import SETTLED_SECONDS
from dedloc_kit.steering.serving_alerts import ServingAlerts
from tests.dashboard.served_model import GAP, SERVING, WHOLE, served, server

ALONE = served(server(0))
Wait = Callable[[AnyEvent, float], list[str]]


@pytest.fixture
def wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wait:
    """Lets so much time pass in which an event comes every second, and returns what was told in it."""
    now, told = [1000.0], list[Alert]()
    monkeypatch.setattr(serving_alerts, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    alerts = ServingAlerts(tmp_path, SERVING.manifest, told.append)

    def passing(event: AnyEvent, seconds: float) -> list[str]:
        before = len(told)
        for _ in range(int(seconds) + 1):
            alerts.hear(event)
            now[0] += 1.0
        assert [alert.text for alert in reversed(raised_alerts(tmp_path, 100))] == [alert.text for alert in told]
        return [alert.text for alert in told[before:]]

    return passing


def test_a_gap_and_layers_with_one_server_are_told_once_until_that_changes(wait: Wait) -> None:
    assert wait(WHOLE, 600) == []
    assert wait(GAP, SETTLED_SECONDS - 5) == []
    bare, single = wait(GAP, 10)
    assert bare.startswith("nobody serves the layers 22 to 25 of 30")
    assert single.startswith("one server alone serves the layers 20 to 21, 26 to 29 of 30")
    assert wait(GAP, 600) == []
    changed = wait(ALONE, SETTLED_SECONDS)
    assert changed == [
        "each layer has a server again",
        "one server alone serves the layers 0 to 29 of 30: find another",
    ]
    assert wait(WHOLE, SETTLED_SECONDS) == ["no layer has one server only any more"]


def test_what_is_over_within_a_minute_is_not_told(wait: Wait) -> None:
    for _ in range(5):
        assert wait(GAP, SETTLED_SECONDS / 2) == []
        assert wait(WHOLE, SETTLED_SECONDS / 2) == []


def test_a_gap_whose_borders_never_rest_is_told_all_the_same(wait: Wait) -> None:
    told: list[str] = []
    for turn in range(8):
        told += wait(served(server(0, 0, 20 + turn % 2), server(1, 0, 20 + turn % 2)), SETTLED_SECONDS / 4)
    assert len(told) == 1
    assert told[0].startswith("nobody serves the layers 2")


def test_the_end_of_the_first_server_is_told(wait: Wait) -> None:
    assert wait(Failed(text="out of memory"), 0) == ["the first server stopped: out of memory"]
