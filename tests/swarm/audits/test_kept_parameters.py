"""Parameters of before are there for some steps, bit for bit."""

from pathlib import Path

import pytest
import torch

from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.audits.kept import Kept
from dedloc_kit.swarm.audits.kept_parameters import KeptParameters
from tests.tiny import TinyTask, tiny_run


def training_state() -> TrainingState:
    run = tiny_run()
    task = TinyTask(run)
    return TrainingState(task.model(), lambda m: build_optimizer(run.optimizer, task.groups(m)), run)


def receipt(step: int) -> Receipt:
    return Receipt(step=step, round=f"{step:02x}", time=0.0, seconds=0.0, record=b"")


def test_those_of_the_last_few_steps_are_there_bit_for_bit_and_older_ones_are_not(tmp_path: Path) -> None:
    state = training_state()
    kept = KeptParameters(state, tmp_path / "kept", 3)
    kept.keep()
    state.listen(kept.keep)
    held = [state.flat.clone()]
    for step in range(1, 6):
        state.apply(torch.randn(state.layout.size), receipt(step))
        held.append(state.flat.clone())
    for step, expected in enumerate(held):
        found = kept.read(step)
        assert (found is not None) is (step >= 3)
        assert found is None or torch.equal(found, expected)
    assert kept.read(6) is None
    kept.close()
    assert kept.read(5) is None
    assert not (tmp_path / "kept").exists()


def test_those_of_a_state_that_was_loaded_take_the_place_of_others_of_that_step(tmp_path: Path) -> None:
    state, other = training_state(), training_state()
    kept = KeptParameters(state, tmp_path / "kept", 3)
    state.listen(kept.keep)
    state.apply(torch.randn(state.layout.size), receipt(1))
    with torch.no_grad():
        other.flat.fill_(0.5)
    state.load(other.tensors(), StateInfo(run_id=state.run_id, step=1, rounds=("ff",)))
    found = kept.read(1)
    assert found is not None
    assert torch.equal(found, torch.full_like(found, 0.5))
    found.zero_()
    again = kept.read(1)
    assert again is not None
    assert float(again.min()) == 0.5, "what was read belongs to its reader"


def test_a_full_disk_costs_one_warning_and_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Kept, "put", full)
    state = training_state()
    kept = KeptParameters(state, tmp_path / "kept", 3)
    state.listen(kept.keep)
    for step in (1, 2):
        state.apply(torch.randn(state.layout.size), receipt(step))
    assert (state.step, kept.read(2)) == (2, None)
    assert [("No space left" in text) for text in caplog.messages] == [True]
