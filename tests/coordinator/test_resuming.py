"""Which training state a coordinator starts from."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.coordinator.resuming import credit, resume
from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Contributor, Ledger
from dedloc_kit.ledger.copying import write_copy
from dedloc_kit.machine.logs import Warnings
from dedloc_kit.records.contributors import CONTRIBUTORS_FILE, LEDGER_FOLDER
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.state import STATE_FILE
from dedloc_kit.records.steps import Contribution, GlobalStep
from tests.tiny import TinyTask, tiny_run

RUN = tiny_run()


def new_state(run: RunConfig = RUN, width: int | None = None) -> TrainingState:
    task = TinyTask(run)
    model = task.model() if width is None else torch.nn.Linear(width, width)
    return TrainingState(model, lambda m: Lamb(task.groups(m), lr=0.1), run)


def saved(path: Path, step: int, state: TrainingState | None = None) -> Path:
    """A checkpoint whose parameters are all the number of its step."""
    tensors, info = (state or new_state()).copy()
    for tensor in tensors.values():
        tensor.fill_(step)
    checkpoint.save(path, tensors, info.model_copy(update={"step": step, "rounds": ("ab",)}))
    return path


def resumed(own: Path, named: Path | None, run: RunConfig = RUN, **values: Any) -> tuple[TrainingState, list[str]]:
    state, warnings = new_state(run, **values), list[str]()
    with closing(Warnings(warnings.append)):
        taken = resume(state, Checkpoints(own), named)
    assert taken == (named is not None and not any("goes on from there" in warning for warning in warnings))
    if state.step:
        assert all(bool((parameter == state.step).all()) for parameter in state.parameters)
        assert all(bool((tensor == state.step).all()) for tensor in state.optimizer.state_tensors())
    return state, warnings


def test_a_run_without_any_checkpoint_begins(tmp_path: Path) -> None:
    state, warnings = resumed(tmp_path / "own", None)
    assert (state.step, warnings) == (0, [])


def test_the_folders_newest_checkpoint_is_taken(tmp_path: Path) -> None:
    saved(tmp_path / "own" / "step-00000004.safetensors", 4)
    saved(tmp_path / "own" / "step-00000005.safetensors", 5)
    state, warnings = resumed(tmp_path / "own", None)
    assert (state.step, state.rounds, warnings) == (5, ("ab",), [])


def test_a_named_place_may_be_a_file_a_folder_of_checkpoints_a_runs_folder_or_a_copy_of_its_repository(
    tmp_path: Path,
) -> None:
    file = saved(tmp_path / "run" / "checkpoints" / "step-00000006.safetensors", 6)
    saved(tmp_path / "copy" / STATE_FILE, 6)
    for number, named in enumerate((file, file.parent, file.parent.parent, tmp_path / "copy")):
        state, warnings = resumed(tmp_path / f"own{number}", named)
        assert (state.step, warnings) == (6, [])


def test_the_newer_of_the_folders_and_the_named_state_is_taken(tmp_path: Path) -> None:
    saved(tmp_path / "own" / "step-00000005.safetensors", 5)
    older = saved(tmp_path / "older.safetensors", 4)
    state, warnings = resumed(tmp_path / "own", older)
    assert state.step == 5
    assert "is at step 5, so the run goes on from there, not from step 4" in warnings[0]
    state, warnings = resumed(tmp_path / "own", saved(tmp_path / "newer.safetensors", 6))
    assert (state.step, warnings) == (6, [])


def test_nothing_in_a_named_folder_is_changed_and_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "checkpoints"
    saved(folder / "step-00000005.safetensors", 5)
    damaged = saved(folder / "step-00000006.safetensors", 6)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (folder / ".step-00000007.safetensors.tmp").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    state, warnings = resumed(tmp_path / "own", tmp_path / "run")
    assert state.step == 5
    assert "step-00000006.safetensors is damaged" in warnings[0]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_place_without_a_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "half.safetensors").write_bytes(saved(tmp_path / "whole", 3).read_bytes()[:-1])
    for named in (tmp_path / "empty", tmp_path / "half.safetensors"):
        with pytest.raises(UserError, match=r"no whole checkpoint in .*; check --resume"):
            resumed(tmp_path / "own", named)
    with pytest.raises(UserError, match=r"cannot be read .*; check --resume"):
        resumed(tmp_path / "own", tmp_path / "nothing")


def test_a_run_whose_configuration_was_changed_goes_on_and_says_so(tmp_path: Path) -> None:
    changed = tiny_run(global_batch=128)
    named = saved(tmp_path / "before.safetensors", 6)
    state, warnings = resumed(tmp_path / "own", named, changed)
    assert state.info.run_id == changed.run_id != RUN.run_id
    assert (state.step, state.decay, state.rewound) == (6, None, 0), "what was ordered ends with the run of before"
    assert RUN.run_id in warnings[0]
    assert changed.run_id in warnings[0]


def test_a_state_of_another_run_or_with_other_shapes_is_refused_with_the_difference(tmp_path: Path) -> None:
    other = saved(tmp_path / "other.safetensors", 6, new_state(tiny_run("other")))
    with pytest.raises(UserError, match=r"belongs to the run other-.*, this one is tiny-.*keep the run's name"):
        resumed(tmp_path / "own", other)
    with pytest.raises(UserError, match=r"does not belong to this run .*; check --resume"):
        resumed(tmp_path / "own", saved(tmp_path / "tiny.safetensors", 6), width=3)
    saved(tmp_path / "own2" / "step-00000006.safetensors", 6, new_state(tiny_run("other")))
    with pytest.raises(UserError, match="choose another --folder"):
        resumed(tmp_path / "own2", None)


def given(step: int, session: str, samples: int, time: float, before: int = 0) -> Contribution:
    return Contribution(
        run_id=RUN.run_id,
        step=step,
        session=session,
        samples=samples,
        session_samples=before + samples,
        loss=2.0,
        name="Asha",
        time=time,
    )


def a_ledger(folder: Path, samples: int = 0) -> Ledger:
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder / "ledger.sqlite", clock=lambda: 5.0)
    if samples:
        step = GlobalStep(step=1, round="ab", time=5.0, samples=samples, loss=2.0, peers=2, seconds=0.1)
        ledger.record_step(step, {"12D3Koo": given(1, "a1", samples, 5.0)})
    return ledger


@pytest.mark.soak
def test_who_contributed_is_taken_over_and_goes_on_counting(tmp_path: Path) -> None:
    before = a_ledger(tmp_path / "run", 64)
    asha = Contributor("12D3Koo", "Asha", 64, 1, 5.0, 5.0)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / CONTRIBUTORS_FILE).write_text(json.dumps([asdict(asha)]))
    places = ("run", "run/checkpoints", "run/checkpoints/step-00000001.safetensors", "copy/" + STATE_FILE)
    (tmp_path / "run" / "checkpoints").mkdir()
    for number, place in enumerate(places):
        ledger = a_ledger(tmp_path / f"own{number}")
        for _ in range(2):  # the second time it has begun
            credit(ledger, tmp_path / place)
        assert ledger.contributors() == [asha]
        ledger.record_contribution("12D3Koo", given(2, "b2", 8, 9.0))
        assert ledger.samples_total() == 72
        ledger.close()
    before.close()


@pytest.mark.soak
def test_the_whole_history_is_taken_over_and_a_session_that_goes_on_counts_once(
    tmp_path: Path, warned: list[str]
) -> None:
    before = a_ledger(tmp_path / "run", 64)
    before.record_evaluation(1, Evaluation(loss=3.0), 6.0)
    write_copy(before.path, tmp_path / "copy" / LEDGER_FOLDER)
    (tmp_path / "copy" / CONTRIBUTORS_FILE).write_text("[]")
    for number, place in enumerate(("run", "copy/" + STATE_FILE)):
        ledger = a_ledger(tmp_path / f"own{number}")
        credit(ledger, tmp_path / place)
        assert ledger.steps() == before.steps()
        assert ledger.evaluations() == before.evaluations()
        ledger.record_contribution("12D3Koo", given(2, "a1", 36, 9.0, before=64))
        assert ledger.samples_total() == 100
        assert [path.name for path in ledger.path.parent.iterdir() if path.is_dir()] == []
        ledger.close()
    assert warned == []
    before.close()


@pytest.mark.soak
def test_of_a_history_that_cannot_be_believed_the_contributors_are_left(tmp_path: Path, warned: list[str]) -> None:
    (tmp_path / LEDGER_FOLDER).mkdir()
    (tmp_path / LEDGER_FOLDER / "steps.parquet").write_bytes(b"no table")
    asha = Contributor("12D3Koo", "Asha", 64, 1, 5.0, 5.0)
    (tmp_path / CONTRIBUTORS_FILE).write_text(json.dumps([asdict(asha)]))
    ledger = a_ledger(tmp_path / "own")
    credit(ledger, tmp_path)
    assert len(warned) == 1
    assert "the history of the run is not restored (steps.parquet cannot be read" in warned[0]
    assert ledger.contributors() == [asha]
    ledger.close()


@pytest.mark.parametrize("text", ["", "[1]", '[{"peer": "x"}]', "3"])
def test_an_unreadable_list_of_contributors_is_no_reason_not_to_start(
    tmp_path: Path, warned: list[str], text: str
) -> None:
    (tmp_path / CONTRIBUTORS_FILE).write_text(text)
    ledger = a_ledger(tmp_path / "own")
    credit(ledger, tmp_path)
    assert "who contributed before is not known" in warned[0]
    assert ledger.contributors() == []
    ledger.close()
