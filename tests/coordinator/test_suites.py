"""Checkpoints are scored by standard suites beside the training, which never waits for it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from dedloc_kit.cli.main import main
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.places import local_copies
from dedloc_kit.coordinator.suites import Suites, check_suites
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.ledger import SuiteScore
from dedloc_kit.machine.home import remember_copies
from dedloc_kit.organizer.launch import Coordinator, write_invitation
from tests.export.runs import LedRun
from tests.learning.evaluate.conftest import threads  # noqa: F401
from tests.learning.evaluate.language import PEOPLE, PLACES, write_causal
from tests.learning.evaluate.test_suites import here  # noqa: F401
from tests.ledgers import a_step
from tests.loopback_hub import loopback_hub
from tests.session.sessions import session_at
from tests.swarm.harness import wait_until
from tests.text_runs import text_run, write_text
from tests.tiny import tiny_run

STUCK = """\
import os, time

def stuck(rows):
    with open("stuck", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)
"""


@pytest.fixture
def led(tmp_path: Path, here: Path) -> Iterator[LedRun]:  # noqa: F811
    write_text(tmp_path)
    led = LedRun(tmp_path / "run", text_run(tmp_path, "causal"))
    led.step()
    yield led
    led.ledger.close()


@contextmanager
def scoring(led: LedRun, told: list[AnyEvent], seconds: int = 300, **options: object) -> Iterator[Suites]:
    values = {"suites": ("near.yaml",), "threads": 1, **options}
    suites = Suites(CoordinatorConfig(folder=led.folder, **values), led.ledger, told.append, seconds=seconds)  # type: ignore[arg-type]
    try:
        yield suites
    finally:
        suites.close()
    assert not any(thread.name == "suites" for thread in threading.enumerate()), "its thread has ended"


def get_stuck(folder: Path) -> None:
    """Let the task there take for ever."""
    (folder / "stuck.py").write_text(STUCK)
    with (folder / "near.yaml").open("a") as file:
        file.write("process_docs: !function stuck.stuck\n")


def evaluated(checkpoint: Path, task: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """What `dedloc evaluate` finds for a checkpoint."""
    capsys.readouterr()
    words = ["--suite", str(task), "--json", "--device", "cpu", "--threads", "1"]
    assert main(["evaluate", str(checkpoint), *words]) == 0
    found: dict[str, float] = json.loads(capsys.readouterr().out)["suites"][0]["trained"]
    return found


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_newest_checkpoint_and_a_published_model_are_scored_into_the_ledger(
    led: LedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    led.step()
    other = write_causal(tmp_path / "other", [*PEOPLE, *PLACES, "walks", "near"], uniform=True)
    told: list[AnyEvent] = []
    with loopback_hub(monkeypatch, tmp_path / "hub") as hub:
        hub.commits["them/other"] = [{path.name: path.read_bytes() for path in other.iterdir()}]
        with scoring(led, told, suite_against="them/other") as suites:
            suites.look(led.checkpoints)
            wait_until(lambda: len(led.ledger.suites()) == 2 or bool(told), "nothing was scored", 200.0)
    assert told == []
    own, theirs = led.ledger.suites()
    expected = evaluated(led.checkpoints.kept()[0], Path("near.yaml"), capsys)
    metric = "accuracy of near"
    assert own == SuiteScore(metric, "", 2, own.time, 12, expected["mean"], expected["spread"])
    assert (theirs.metric, theirs.model, theirs.step, theirs.questions) == (metric, "them/other", 0, 12)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_checkpoint_of_what_a_rewind_has_taken_back_gets_no_score(
    led: LedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led.ledger.record_step(a_step(1, way="b"), {})
    other = write_causal(tmp_path / "other", [*PEOPLE, *PLACES, "walks", "near"])
    told: list[AnyEvent] = []
    with loopback_hub(monkeypatch, tmp_path / "hub") as hub:
        hub.commits["them/other"] = [{path.name: path.read_bytes() for path in other.iterdir()}]
        with scoring(led, told, suite_against="them/other") as suites:
            suites.look(led.checkpoints)
            wait_until(lambda: bool(led.ledger.suites() or told), "nothing was scored", 200.0)
    assert told == []
    (theirs,) = led.ledger.suites()
    assert theirs.model == "them/other"


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_what_takes_too_long_is_ended_and_told_once(led: LedRun, here: Path) -> None:  # noqa: F811
    get_stuck(here)
    told: list[AnyEvent] = []
    before = psutil.Process().children()
    with scoring(led, told, seconds=25) as suites:
        suites.look(led.checkpoints)
        wait_until(lambda: bool(told), "nothing was told", 200.0)
    (warned,) = told
    assert isinstance(warned, Warned)
    assert "its process ended with -14; it had 25 s, see suite_samples" in warned.text
    assert led.ledger.suites() == []
    assert psutil.Process().children() == before


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_coordinator_that_leaves_waits_for_no_model(led: LedRun, here: Path) -> None:  # noqa: F811
    get_stuck(here)
    told: list[AnyEvent] = []
    with scoring(led, told) as suites:
        suites.look(led.checkpoints)
        wait_until(lambda: (here / "stuck").exists() and bool((here / "stuck").read_text()), "it did not begin", 200.0)
        child = psutil.Process(int((here / "stuck").read_text()))
        assert child.nice() > psutil.Process().nice()
    assert told == []
    assert not child.is_running()


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_model_that_no_suite_can_ask_is_told_with_the_reason(tmp_path: Path, here: Path) -> None:  # noqa: F811
    led = LedRun(tmp_path / "run", tiny_run(), module="tests.tiny")
    led.step()
    told: list[AnyEvent] = []
    with scoring(led, told, task_module="tests.tiny") as suites:
        suites.look(led.checkpoints)
        wait_until(lambda: bool(told), "nothing was told", 200.0)
    (warned,) = told
    assert isinstance(warned, Warned)
    assert "no scores by standard suites: the task 'tiny' trains no model that is used without" in warned.text
    led.ledger.close()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"suites": ("beleble",), "suite_language": "uk"}, "there is no suite 'beleble'; did you mean belebele?"),
        ({"suites": ("belebele",)}, "name one: --language uk, or suite_language of a coordinator"),
        ({"suites": ("belebele", "multiblimp"), "suite_language": "mi"}, "multiblimp has no questions in the language"),
        ({"suites": ("gone.yaml",)}, "gone.yaml does not exist"),
    ],
)
def test_suites_that_are_not_to_be_had_are_told_before_the_run_begins(
    options: dict[str, object], told: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=told.replace("?", r"\?")):
        check_suites(CoordinatorConfig(folder=tmp_path, **options))  # type: ignore[arg-type]


def test_names_are_a_list_or_have_commas_between_them(tmp_path: Path) -> None:
    for value in (("belebele", "near.yaml"), ["belebele", "near.yaml"], "belebele,near.yaml"):
        peer = CoordinatorConfig(folder=tmp_path, suites=value)  # type: ignore[arg-type]
        assert peer.suites == ("belebele", "near.yaml")
        assert CoordinatorConfig.model_validate_json(peer.model_dump_json()) == peer, "through the worker's job"
    for wrong in ("belebele,", 3, [3]):
        with pytest.raises(ValueError, match="suites"):
            CoordinatorConfig(folder=tmp_path, suites=wrong)  # type: ignore[arg-type]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_page_of_a_run_that_goes_on_has_the_scores_of_its_checkpoint(
    tmp_path: Path,
    here: Path,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_text(tmp_path)
    run, task = text_run(tmp_path, "causal"), here / "near.yaml"
    task.write_text(task.read_text().replace("near.jsonl", str(here / "near.jsonl")))
    remembered = local_copies(run)
    peer = CoordinatorConfig(
        folder=tmp_path / "run", swarm_host="127.0.0.1", threads=1, keep_checkpoints=20, suites=(str(task),)
    )
    with Coordinator(run, peer, host="127.0.0.1", port=0, on_event=lambda _: None) as coordinator:
        invitation = coordinator.invitation()
        write_invitation(invitation, peer.folder)
        remember_copies(run.run_id, invitation.organizer, remembered)
        with session_at(
            coordinator.dashboard.url, tmp_path / "volunteer", task_module=None, data=remembered, until_step=2
        ):
            scored: list[dict[str, Any]] = []

            def look() -> bool:
                scored[:] = requests.get(f"{coordinator.dashboard.url}/api/state", timeout=60).json()["suites"]
                return bool(scored)

            wait_until(look, "the page has no scores", 400.0)
        (suite,) = scored
        checkpoint = tmp_path / "run" / "checkpoints" / f"step-{suite['last']['step']:08d}.safetensors"
        found = evaluated(checkpoint, task, capsys)
    assert (suite["metric"], suite["questions"]) == ("accuracy of near", 12)
    assert (suite["last"]["mean"], suite["last"]["spread"]) == (found["mean"], found["spread"])
