"""Which states become checkpoints, and those of which others have parts."""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dedloc_kit.coordinator import saving as module
from dedloc_kit.coordinator.durability import LastingRecord
from dedloc_kit.coordinator.evaluator import Evaluator
from dedloc_kit.coordinator.saving import Saving
from dedloc_kit.events import AnyEvent, Evaluated, Warned
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.state import Take
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.records.steps import GlobalStep
from tests.experts.mixed_states import EXPERT, RUN, TASK, fresh, given_away, hosted, step
from tests.hang import HANG
from tests.learning.train.state import test_staged as staged


class Gathered:
    """A state of which a host has an expert, and gives it when it is let."""

    def __init__(self) -> None:
        self.state, self._all = fresh(), fresh()
        self.asked, self.let = threading.Event(), threading.Event()
        given_away(self.state)
        hosted(self.state, self._fetch)

    def step(self) -> None:
        for each in (self.state, self._all):
            step(each)

    def _fetch(self, names: Sequence[ExpertName], step: int, take: Take) -> None:
        copy = self._all.bank.state(EXPERT)
        self.asked.set()
        assert self.let.wait(HANG)
        take(EXPERT, copy)


@pytest.fixture
def gathered() -> Iterator[Gathered]:
    made = Gathered()
    yield made
    made.let.set()


def unheard(event: AnyEvent) -> None:
    raise AssertionError(event)


def steps_of(lasting: LastingRecord) -> list[int]:
    return [int(path.stem.removeprefix("step-")) for path in lasting.checkpoints.kept()]


def test_what_a_run_went_back_to_is_kept_though_the_next_step_has_been_taken_since(tmp_path: Path) -> None:
    """Stages take their steps beside the coordinator's loop, which may look late."""
    parts, lasting = staged.states(), LastingRecord(tmp_path, keep=3)
    saving = Saving(StagedState(staged.RUN, staged.whole, parts), lasting, lambda: None, unheard)
    for part in [*parts, *parts]:
        staged.step(part)
    went_back = GlobalStep(step=1, round="ab", time=1.0, samples=0, loss=None, peers=0, seconds=0.0)
    saving.stepped(went_back.model_copy(update={"peers": 2}), every=1)
    assert steps_of(lasting) == [], "any other step has its turn again"
    saving.stepped(went_back, every=10)
    assert steps_of(lasting) == [2]
    saving.close()
    lasting.close()


def test_that_no_checkpoint_can_be_written_is_an_alert_and_so_is_its_end(tmp_path: Path) -> None:
    parts, lasting, heard = staged.states(), LastingRecord(tmp_path, keep=3), list[AnyEvent]()
    saving = Saving(StagedState(staged.RUN, staged.whole, parts), lasting, lambda: None, heard.append)
    folder = tmp_path / "checkpoints"
    folder.rename(tmp_path / "elsewhere")
    folder.touch()  # nobody can write into it, as on a file system that has become read-only
    for _ in range(2):
        for part in parts:
            staged.step(part)
        saving.save()
    (begun,) = heard
    assert isinstance(begun, Warned)
    assert begun.alert
    assert begun.text.startswith("checkpoints cannot be written: no checkpoint of step 1: ")
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    saving.save()
    saving.save()
    assert heard[1:] == [Warned(text="checkpoints can be written again", alert=True)]
    saving.close()
    lasting.close()


def test_nothing_waits_for_what_others_have_and_what_was_asked_for_meanwhile_follows(
    tmp_path: Path, gathered: Gathered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSES", 1e9)
    lasting = LastingRecord(tmp_path, keep=3)
    saving = Saving(gathered.state, lasting, lambda: None, unheard)
    gathered.step()
    saving.save()
    assert gathered.asked.wait(HANG)
    saving.finish()
    assert steps_of(lasting) == []
    gathered.step()
    saving.save()
    gathered.let.set()
    saving.finish(wait=True)
    assert steps_of(lasting) == [2, 1]
    gathered.asked.clear()
    gathered.step()
    saving.save()
    assert not gathered.asked.wait(1.0), "for so soon again there are other things to do"
    saving.finish(wait=True)
    assert steps_of(lasting) == [3, 2, 1]
    found = lasting.checkpoints.newest()
    assert found is not None
    fresh().check_named(*found)
    saving.close()
    lasting.close()


def test_no_measurement_waits_for_it_either(tmp_path: Path, gathered: Gathered) -> None:
    lasting, heard = LastingRecord(tmp_path, keep=3), list[AnyEvent]()
    lasting.begin(None)
    evaluator = Evaluator(RUN, TASK, gathered.state, lasting, heard.append)
    gathered.step()
    evaluator.start()
    assert gathered.asked.wait(HANG)
    evaluator.finish()
    assert not heard
    gathered.let.set()
    evaluator.finish(wait=True)
    right = fresh()
    step(right)
    assert heard == [Evaluated(step=1, loss=TASK.evaluate(right.snapshot()[0]).loss, metrics={})]
    evaluator.close()
    lasting.close()
