"""Pushes go on beside the training, whatever the Hub does."""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from dedloc_kit.client import fetch_invitation
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.places import names_local_files
from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.publishing import publisher
from dedloc_kit.coordinator.publishing.publisher import Publisher
from dedloc_kit.events import AnyEvent, Pushed, PushFailed
from dedloc_kit.hub import ledger_copy
from dedloc_kit.learning.task import Usage
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Ledger
from dedloc_kit.ledger.copying import restore
from dedloc_kit.records.contributors import CONTRIBUTORS_FILE
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.state import STATE_FILE
from dedloc_kit.records.steps import GlobalStep, Receipt
from tests.invitations import NOBODY, invited
from tests.loopback_hub import Files, LoopbackHub, loopback_hub
from tests.swarm.harness import wait_until
from tests.tiny import TinyTask, tiny_run

RUN = tiny_run()
NAME = "us/model"
ALWAYS = {".gitattributes", "run.json", "README.md", "curve.svg", CONTRIBUTORS_FILE, STATE_FILE}
E = TypeVar("E")


class ExportedTask(TinyTask):
    """Its model is one file of plain numbers."""

    def export(self, model: torch.nn.Module, folder: Path, repository: str) -> Usage:
        (folder / "weights.json").write_text(json.dumps([p.sum().item() for p in model.parameters()]))
        return Usage("numbers", "guessing", f"load({repository!r})")


class Coordinator:
    """What a publisher sees of one: a state that goes on, a ledger, someone who hears events."""

    def __init__(self, folder: Path, task: TinyTask, run: RunConfig = RUN, **settings: Any) -> None:
        folder.mkdir()
        self.run = run
        self.peer = CoordinatorConfig(folder=folder, hub=NAME, **settings)
        self.task = task
        self.state = TrainingState(task.model(), lambda m: Lamb(task.groups(m), lr=0.1), RUN)
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.events: list[AnyEvent] = []
        self._news = threading.Condition()

    def publisher(self) -> Publisher:
        return Publisher(self.run, self.peer, self.state, self.task, self.ledger, self._heard)

    def go_on(self, step: int) -> None:
        """Be at this step, with other parameters."""
        average = torch.full((self.state.layout.size,), 0.1)
        self.state.apply(average, Receipt(step=step, round=f"{step:04x}", time=0.0, seconds=0.0, record=b""))
        done = GlobalStep(step=step, round=f"{step:04x}", time=0.0, samples=64, loss=2.0, peers=2, seconds=0.1)
        self.ledger.record_step(done, {})

    def _heard(self, event: AnyEvent) -> None:
        with self._news:
            self.events.append(event)
            self._news.notify_all()

    def wait_for(self, kind: type[E], that: Callable[[E], bool] = lambda _: True) -> E:
        def found() -> E | None:
            return next((event for event in self.events if isinstance(event, kind) and that(event)), None)

        with self._news:
            assert self._news.wait_for(lambda: found() is not None, timeout=60.0), self.events
        event = found()
        assert event is not None
        return event


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    monkeypatch.setattr(publisher, "FIRST_PAUSE", 0.01)
    with loopback_hub(monkeypatch, tmp_path / "cache") as served:
        yield served


@contextmanager
def publishing_of(coordinator: Coordinator) -> Iterator[Publisher]:
    publisher = coordinator.publisher()
    try:
        yield publisher
    finally:
        publisher.close()
        coordinator.ledger.close()
    assert not any(thread.name == "pushes" for thread in threading.enumerate()), "its thread has ended"


def beside_the_ledger(files: Files) -> set[str]:
    return {name for name in files if not name.startswith("ledger/")}


def test_a_push_holds_state_model_card_and_curve_of_one_step_in_one_commit(hub: LoopbackHub, tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", ExportedTask(RUN), push_every=2)
    with publishing_of(coordinator) as publisher:
        coordinator.go_on(2)
        publisher.step_done(2)
        coordinator.wait_for(Pushed)
        before = len(hub.commits[NAME])
        coordinator.go_on(3)
        publisher.step_done(3)
        coordinator.go_on(4)
        publisher.step_done(4)
        event = coordinator.wait_for(Pushed, lambda event: event.step == 4)
        assert event.url.endswith(hub.revision(NAME))
        assert len(hub.commits[NAME]) == before + 1
        coordinator.go_on(5)
        publisher.push_soon()
        coordinator.wait_for(Pushed, lambda event: event.step == 5)
    assert len(hub.commits[NAME]) == before + 2, "there was nothing new to push at the end"
    files = hub.files(NAME)
    assert beside_the_ledger(files) == {*ALWAYS, "weights.json"}
    (tmp_path / "loaded").write_bytes(files[STATE_FILE])
    tensors, info = checkpoint.load(tmp_path / "loaded")
    assert info == coordinator.state.info
    now, _ = coordinator.state.copy()
    assert all(torch.equal(tensors[name], now[name]) for name in now), "the optimizer's moments are there too"
    sums = [parameter.sum().item() for parameter in coordinator.state.model.parameters()]
    assert json.loads(files["weights.json"]) == pytest.approx(sums)
    card = files["README.md"].decode()
    assert "load('us/model')" in card
    assert "global step 5 of" in card
    assert b"<svg" in files["curve.svg"]
    assert not (tmp_path / "c" / ".push").exists()


@pytest.mark.child
def test_a_push_holds_the_ledger_of_that_moment(hub: LoopbackHub, tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN), push_every=2)
    with publishing_of(coordinator) as publisher:
        coordinator.go_on(2)
        publisher.step_done(2)
        coordinator.wait_for(Pushed)
        pushed = hub.revision(NAME)
        coordinator.go_on(3)
    (tmp_path / "new").mkdir()
    for number, (revision, steps) in enumerate(((pushed, [2]), (None, [2, 3]))):
        folder = ledger_copy(NAME, revision)
        assert folder is not None
        restored = Ledger(tmp_path / "new" / f"{number}.sqlite")
        restore(restored.path, folder)
        assert [step.step for step in restored.steps()] == steps
        restored.close()


def test_of_a_task_that_exports_nothing_the_training_state_is_pushed(hub: LoopbackHub, tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN))
    with publishing_of(coordinator):
        coordinator.go_on(1)
    assert coordinator.wait_for(Pushed).step == 1, "the last state is pushed on leaving"
    assert beside_the_ledger(hub.files(NAME)) == ALWAYS


def test_while_the_hub_fails_nothing_waits_and_then_the_newest_state_is_pushed(
    hub: LoopbackHub, tmp_path: Path
) -> None:
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN), push_every=1)
    hub.failing.set()
    with publishing_of(coordinator) as publisher:
        for step in range(1, 6):
            coordinator.go_on(step)
            publisher.step_done(step)
            assert hub.asked.acquire(timeout=30.0)
        coordinator.wait_for(PushFailed, lambda event: "503" in event.text and "trying again in" in event.text)
        assert NAME not in hub.commits
        hub.failing.clear()
        coordinator.wait_for(Pushed, lambda event: event.step == 5)
    assert [event.step for event in coordinator.events if isinstance(event, Pushed)] == [5], "older ones are skipped"


def test_a_silent_hub_holds_up_neither_a_step_nor_for_long_the_end(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoordinatorConfig, "last_push_seconds", 0.2)
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN), push_every=1)
    hub.silent.set()
    publisher = coordinator.publisher()
    coordinator.go_on(1)
    publisher.step_done(1)
    assert hub.asked.acquire(timeout=30.0), "it is being asked"
    coordinator.go_on(2)
    publisher.step_done(2)
    publisher.close()
    assert "given up" in coordinator.wait_for(PushFailed).text
    hub.silent.clear()
    hub.over.set()
    publisher._thread.join(60.0)
    assert coordinator.state.step == 2


def test_a_resumed_run_pushes_at_once_what_may_have_been_pending(hub: LoopbackHub, tmp_path: Path) -> None:
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN))
    coordinator.go_on(7)
    with publishing_of(coordinator):
        assert coordinator.wait_for(Pushed).step == 7


def test_a_full_disk_is_worth_a_warning_and_the_push_is_made_up_for(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN), push_every=1)
    with publishing_of(coordinator) as publisher:
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            coordinator.go_on(1)
            publisher.step_done(1)
            coordinator.wait_for(PushFailed, lambda event: "No space left" in event.text)
        coordinator.wait_for(Pushed)


def test_a_state_whose_stages_are_at_different_steps_is_pushed_once_they_are_together(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN), push_every=1)
    copied, apart = coordinator.state.copy, threading.Event()

    def copy() -> Any:
        if apart.is_set():
            raise ValueError("its stages are not at the same step")
        return copied()

    monkeypatch.setattr(coordinator.state, "copy", copy)
    apart.set()
    with publishing_of(coordinator) as publisher:
        coordinator.go_on(1)
        publisher.step_done(1)
        coordinator.wait_for(PushFailed, lambda event: "not at the same step" in event.text)
        apart.clear()
        assert coordinator.wait_for(Pushed).step == 1


def test_an_export_that_fails_does_not_end_the_pushes(hub: LoopbackHub, tmp_path: Path) -> None:
    class Failing(ExportedTask):
        broken = True

        def export(self, model: torch.nn.Module, folder: Path, repository: str) -> Usage:
            if self.broken:
                raise RuntimeError("a bug")
            return super().export(model, folder, repository)

    task = Failing(RUN)
    coordinator = Coordinator(tmp_path / "c", task, push_every=1)
    with publishing_of(coordinator) as publisher:
        coordinator.go_on(1)
        publisher.step_done(1)
        coordinator.wait_for(PushFailed, lambda event: "RuntimeError" in event.text)
        task.broken = False
        coordinator.wait_for(Pushed)


def test_a_repository_that_turns_out_to_be_another_runs_is_left_alone(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.commits[NAME] = [{"run.json": json.dumps({"run_id": "other-0123456789abcdef"}).encode()}]
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN), push_every=1)
    with publishing_of(coordinator) as publisher:
        coordinator.go_on(1)
        publisher.step_done(1)
        coordinator.wait_for(PushFailed, lambda event: "belongs to the run other-0123456789abcdef" in event.text)
    assert len(hub.commits[NAME]) == 1


def test_the_invitation_is_pushed_when_it_is_there_and_again_when_it_has_changed(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(publisher, "INVITATION_SECONDS", 0.0)
    monkeypatch.setattr(publisher, "FIRST_PAUSE", 0.3)
    coordinator = Coordinator(tmp_path / "c", TinyTask(RUN))
    file = tmp_path / "c" / INVITATION_FILE
    file.write_text("one")
    hub.failing.set()
    failed = "the invitation is not on the Hub yet (the Hub answers with 503); trying again in"
    with publishing_of(coordinator):
        coordinator.wait_for(PushFailed, lambda event: event.text == f"{failed} 0 s")
        coordinator.wait_for(PushFailed, lambda event: event.text == f"{failed} 1 s")  # 0.6: pauses grow
        hub.failing.clear()
        wait_until(lambda: _invitation(hub) == "one", "the first one was not pushed")
        file.write_text("other")
        wait_until(lambda: _invitation(hub) == "other", "the changed one was not pushed")
    assert len(hub.commits[NAME]) == 4, "made, claimed, and pushed twice"


def test_a_coordinator_that_has_moved_is_found_under_the_same_name(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "LOOK_SECONDS", 0.01)
    for machine in ("192.0.2.1", "192.0.2.2"):
        invitation = invited(RUN, (NOBODY.replace("127.0.0.1", machine),))
        coordinator = Coordinator(tmp_path / machine, TinyTask(RUN))
        (tmp_path / machine / INVITATION_FILE).write_text(invitation.model_dump_json())
        with publishing_of(coordinator):
            wait_until(lambda expected=invitation: _invitation(hub) == expected.model_dump_json(), "it is not pushed")  # type: ignore[misc]
            assert fetch_invitation(NAME) == invitation


def test_an_invitation_that_names_the_organizers_files_is_not_pushed(
    hub: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)

    def look(run: RunConfig) -> bool:
        looks.release()
        return names_local_files(run)

    monkeypatch.setattr(publisher, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(publisher, "names_local_files", look)
    run = tiny_run(data={"train": [{"dataset": "/home/asha/corpus"}]})
    coordinator = Coordinator(tmp_path / "c", TinyTask(run), run)
    (tmp_path / "c" / INVITATION_FILE).write_text("{}")
    with publishing_of(coordinator):
        for _ in range(3):
            assert looks.acquire(timeout=30.0)
    assert NAME not in hub.commits


def _invitation(hub: LoopbackHub) -> str | None:
    content = hub.files(NAME).get(INVITATION_FILE) if NAME in hub.commits else None
    return None if content is None else content.decode()
