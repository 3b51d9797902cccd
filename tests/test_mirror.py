"""The live page of somebody else's run, served by a command of its own."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from dedloc_kit.client import fetch_invitation, fetch_measured
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.evaluation import Evaluation
from tests.commands import assert_refused, dedloc, running
from tests.hang import HANG
from tests.invitations import NOBODY, invited
from tests.ledgers import GAP, a_step, given
from tests.swarm.harness import wait_until
from tests.tiny import tiny_run


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Dashboard]:
    """A run of three steps whose peers cannot be reached from here."""
    (tmp_path / "run").mkdir()
    ledger = Ledger(tmp_path / "run" / "ledger.sqlite")
    for step in (1, 2, 3):
        ledger.record_step(a_step(step), {"12D3KooAsha": given(step, 64, 64 * step)})
    ledger.record_evaluation(3, Evaluation(loss=1.5, samples=(GAP,)), 1000.0)
    ledger.close()
    served = Dashboard(tiny_run(), tmp_path / "run" / "ledger.sqlite")
    served.start()
    served.entrance.give_out(invited(tiny_run(), (NOBODY,), served.url))
    yield served
    served.stop()


def test_evaluations_come_with_their_samples(coordinator: Dashboard) -> None:
    (measured,) = fetch_measured(coordinator.url, -1)
    assert (measured.step, measured.evaluation) == (3, Evaluation(loss=1.5, samples=(GAP,)))


@pytest.mark.soak
def test_a_mirror_shows_what_it_can_have_and_goes_on_without_the_coordinator(
    coordinator: Dashboard, tmp_path: Path
) -> None:
    mirror = ("mirror", coordinator.url, "--port", "0", "--folder", tmp_path / "mirror")
    with running(*mirror, folder=tmp_path, deadline=HANG) as command:
        command.wait_for("what it collects is in")
        told = command.said().splitlines()[0]
        match = re.fullmatch(rf"mirror of {tiny_run().run_id}: (http://127\.0\.0\.1:\d+)", told)
        assert match is not None, told
        url = match[1]

        def state() -> dict[str, object]:
            values: dict[str, object] = requests.get(f"{url}/api/state", timeout=HANG).json()
            return values

        wait_until(lambda: state()["step"] == 3, "the history did not come", HANG)
        wait_until(lambda: state()["status"] == "coordinator lost", "that nobody answers is not shown", HANG)
        coordinator.stop()
        assert state()["samples_total"] == 192
        assert "is a copy of the coordinator's" in str(state()["notices"])
        assert str(tmp_path) not in str(state())
        assert requests.get(url, timeout=HANG).text.startswith("<!doctype html>")
        assert fetch_invitation(url).peers == (NOBODY,), "whoever finds the mirror can join the run"
        os.kill(command.process.pid, signal.SIGTERM)
        command.ended(HANG)
        assert command.errors() == ""


@pytest.mark.soak
def test_a_mirror_of_nothing_is_refused_with_the_fix(tmp_path: Path) -> None:
    done = dedloc("mirror", tmp_path / "none", "--folder", tmp_path / "m", folder=tmp_path)
    assert_refused(done, "there is no invitation at")
