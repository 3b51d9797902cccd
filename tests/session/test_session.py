"""A volunteer's session, with real peers: what it shows, how it pauses, comes back after a crash and leaves."""

import os
import signal
from pathlib import Path

import pytest
import requests

from dedloc_kit.client import fetch_invitation, fetch_state
from dedloc_kit.dashboard.http.login import Keys
from dedloc_kit.errors import UserError
from dedloc_kit.ledger import Ledger
from dedloc_kit.session import supervisor
from dedloc_kit.session.snapshot import Phase
from dedloc_kit.steering.orders import OrderBook
from tests.session.sessions import CHECKOUT, assert_nothing_runs, coordinator_of, session_at, wait_for
from tests.swarm.harness import processes_of, wait_until
from tests.tiny import tiny_run

BROKEN = """
from tests.tiny import TinyTask

class Broken(TinyTask):
    def loss(self, *given):
        raise LookupError("shard 7 has no text")

TASKS = {"tiny": Broken}
"""
"""A task that takes part, and fails at its first microbatch."""


@pytest.mark.real
def test_a_session_shows_what_it_gives_pauses_and_counts_everything_when_it_leaves(tmp_path: Path) -> None:
    run = tiny_run(about="A toy for the tests.")
    with coordinator_of(run, tmp_path) as coordinator:
        url = coordinator.dashboard.url
        with session_at(url, tmp_path / "volunteer", name="Rina") as session:
            training = wait_for(session, lambda now: now.phase is Phase.WORKING and len(now.losses) >= 3)
            assert (training.run_id, training.about, training.url) == (run.run_id, "A toy for the tests.", url)
            assert (training.name, training.anonymous) == ("Rina", False)
            assert training.losses[-1].mine >= run.global_batch
            now = wait_for(
                session,
                lambda now: (
                    now.standing is not None
                    and now.standing.rank > 0
                    and now.reading is not None
                    and now.reading.memory_bytes > 0
                ),
            )
            assert now.standing is not None
            assert (now.standing.rank, now.standing.contributors, now.share, now.peers) == (1, 1, 1.0, 1)
            assert "CPU" in now.device
            facts = dict(session.snapshot().facts)
            assert "samples/s" in facts["machine"]
            assert {"given", "share", "rank", "memory"} <= facts.keys()
            assert any("Your machine computed" in text for _, text in session.snapshot().notes)

            session.pause()
            paused = wait_for(session, lambda now: now.phase is Phase.PAUSED)
            assert_nothing_runs(session)
            session.resume()
            wait_for(
                session, lambda now: now.phase is Phase.WORKING and now.session_samples > paused.session_samples > 0
            )
        left = session.state()
        assert left.phase is Phase.LEFT
        assert not any("given up" in warning for warning in left.warnings)
        ledger = Ledger(tmp_path / "coordinator" / "ledger.sqlite", read_only=True)
        wait_until(lambda: ledger.samples_total() == left.session_samples, "not every sample is in the ledger")
        (me,) = ledger.contributors()
        ledger.close()
        assert me.name == "Rina", "one identity before and after the pause"
        assert left.standing is not None
        assert left.standing.samples == left.session_samples


@pytest.mark.soak
def test_a_training_that_is_killed_goes_on_by_itself_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_REST", 1.0)
    monkeypatch.setenv("https_proxy", "http://proxy:none")  # on the way to the Hub
    with (
        coordinator_of(tiny_run(), tmp_path) as coordinator,
        session_at(coordinator.dashboard.url, tmp_path / "volunteer") as session,
    ):
        organizer = requests.Session()
        organizer.get(Keys(tmp_path / "coordinator").link(coordinator.dashboard.url), timeout=10.0)

        def restarts() -> list[str]:
            found = organizer.get(f"{coordinator.dashboard.url}/api/organizer", timeout=10.0).json()["restarts"]
            return [told["reason"] for told in found]

        before = wait_for(session, lambda now: now.session_samples >= 64)
        assert restarts() == []
        assert any("the proxy that https_proxy names has no address" in warning for warning in before.warnings)
        assert session.worker is not None
        first = session.worker.pid
        os.kill(first, signal.SIGKILL)
        restarting = wait_for(session, lambda now: now.phase is Phase.RESTARTING)
        assert "starts again" in restarting.text
        assert "SIGKILL" in restarting.text
        log = next((tmp_path / "volunteer" / "logs").glob("volunteer-*.log"))
        assert "ended unexpectedly (signal SIGKILL)" in log.read_text()
        assert "SIGKILL" in restarting.details
        assert "hivemind" in restarting.details
        goal = before.session_samples + 64
        again = wait_for(session, lambda now: now.phase is Phase.WORKING and now.session_samples >= goal)
        assert any("it had stopped: " in warning and "SIGKILL" in warning for warning in again.warnings)
        assert session.worker.pid != first
        told = "the worker ended unexpectedly (signal SIGKILL); its log is …"
        wait_until(lambda: restarts() == [told], "the organizer is not told why")
        wait_until(lambda: not processes_of(first), "a process of the killed training is left")


@pytest.mark.soak
def test_a_run_that_is_over_ends_the_session_with_thanks(tmp_path: Path) -> None:
    with (
        coordinator_of(tiny_run(optimizer={"warmup_steps": 0, "total_steps": 3}), tmp_path) as coordinator,
        session_at(coordinator.dashboard.url, tmp_path / "volunteer") as session,
    ):
        assert session.ended.wait(120.0)
        over = session.state()
        assert over.phase is Phase.FINISHED
        assert over.session_samples >= 3 * 64


@pytest.mark.soak
def test_volunteers_do_what_the_organizer_orders_wait_read_and_end_after_the_step_under_way(tmp_path: Path) -> None:
    folder = tmp_path / "coordinator"
    with (
        coordinator_of(tiny_run(), tmp_path) as coordinator,
        session_at(coordinator.dashboard.url, tmp_path / "volunteer") as session,
    ):
        wait_for(session, lambda now: now.session_samples >= 64)
        OrderBook(folder).pause()
        waiting = wait_for(session, lambda now: "the organizer has paused the run" in now.text)
        assert waiting.phase is Phase.WAITING
        wait_until(lambda: fetch_state(coordinator.dashboard.url).status == "paused", "the page does not say so")
        before = session.state().session_samples
        OrderBook(folder).announce("Half way there!")
        wait_for(session, lambda now: now.announcement == "Half way there!")
        wait_until(
            lambda: getattr(fetch_state(coordinator.dashboard.url).announcement, "text", "") == "Half way there!",
            "the page does not tell it",
        )
        OrderBook(folder).resume()
        wait_for(session, lambda now: now.phase is Phase.WORKING and now.session_samples > before + 64)

        OrderBook(folder).finish()
        assert session.ended.wait(60.0)
        assert session.state().phase is Phase.FINISHED
        wait_until(lambda: fetch_state(coordinator.dashboard.url).status == "finished", "the page does not say so")
        state = fetch_state(coordinator.dashboard.url)
        with pytest.raises(UserError, match="this run is over"):
            fetch_invitation(coordinator.dashboard.url)
        last = state.step
        assert state.samples_total == session.state().session_samples, "what it gave has counted"
        kept = folder / "checkpoints" / f"step-{last:08d}.safetensors"
        wait_until(kept.exists, "the last step has no checkpoint")


@pytest.mark.soak
def test_an_invitation_that_is_none_ends_in_one_sentence_with_details_for_whoever_helps(tmp_path: Path) -> None:
    with session_at(str(tmp_path / "nowhere.json"), tmp_path / "volunteer") as session:
        assert session.ended.wait(60.0)
        failed = session.state()
        assert failed.phase is Phase.FAILED
        assert "there is no invitation at" in failed.text
        assert "\n" not in failed.text
        assert "dedloc_kit" in failed.details


@pytest.mark.soak
def test_a_training_that_never_gets_to_work_is_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_REST", 0.1)
    monkeypatch.setattr(supervisor, "MAX_FALSE_STARTS", 2)
    with (
        coordinator_of(tiny_run(), tmp_path) as coordinator,
        session_at(coordinator.dashboard.url, tmp_path / "volunteer", {"TINY_MEMORY": "a bug"}) as session,
    ):
        assert session.ended.wait(120.0)
        failed = session.state()
        assert "unexpected error" in failed.text
        assert "Traceback" not in failed.text
        assert "ValueError" in failed.details


@pytest.mark.soak
def test_a_training_that_stops_three_times_for_one_reason_without_a_sample_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FIRST_REST", 0.1)
    (tmp_path / "broken.py").write_text(BROKEN)
    with (
        coordinator_of(tiny_run(), tmp_path) as coordinator,
        session_at(
            coordinator.dashboard.url,
            tmp_path / "volunteer",
            {"PYTHONPATH": f"{CHECKOUT}{os.pathsep}{tmp_path}"},
            task_module="broken",
        ) as session,
    ):
        assert session.ended.wait(180.0)
        failed = session.state()
        assert failed.session_samples == 0
        assert "stopped 3 times in a row before it gave anything" in failed.text
        assert "shard 7 has no text" in failed.text
        assert "; " in failed.text, "with what to do"
        logs = "".join(path.read_text() for path in (tmp_path / "volunteer" / "logs").glob("volunteer-*.log"))
        assert "unexpected error ended this worker: LookupError: shard 7 has no text" in logs


@pytest.mark.soak
def test_a_volunteer_who_leaves_at_once_is_gone_at_once(tmp_path: Path) -> None:
    with coordinator_of(tiny_run(), tmp_path) as coordinator:
        with session_at(coordinator.dashboard.url, tmp_path / "volunteer") as session:
            session.leave()
            session.resume()
            session.pause()
        assert session.state().phase is Phase.LEFT, "whatever is pressed after it"
