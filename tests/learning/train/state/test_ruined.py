"""Which steps are lost, and that nothing takes their checkpoints by itself."""

from pathlib import Path

import pytest
import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.state.checkpoint import Checkpoints, find
from dedloc_kit.learning.train.state.ruined import Ruined
from dedloc_kit.records.state import StateInfo


def lost(ruined: Ruined, most: int = 12) -> list[int]:
    return [step for step in range(most) if step in ruined]


def test_steps_are_lost_from_a_bad_evaluation_to_the_next_good_one_and_it_is_remembered(tmp_path: Path) -> None:
    ruined = Ruined(tmp_path)
    assert lost(ruined) == []
    ruined.judge(2, True)
    ruined.judge(4, False)
    ruined.judge(6, False)
    assert lost(ruined) == lost(Ruined(tmp_path)) == [4, 5, 6, 7, 8, 9, 10, 11]
    ruined.judge(8, True)
    ruined.judge(10, False)
    assert lost(ruined) == lost(Ruined(tmp_path)) == [4, 5, 6, 7, 10, 11]


def test_an_evaluation_of_before_that_comes_late_changes_nothing_and_a_better_one_of_the_same_step_does(
    tmp_path: Path,
) -> None:
    ruined = Ruined(tmp_path)
    ruined.judge(4, False)
    ruined.judge(3, True)
    assert lost(ruined, 6) == [4, 5]
    ruined.judge(4, True)
    assert lost(ruined) == []


@pytest.mark.parametrize("text", ["", "{}", "[{}]", '[{"first": -1}]', "[1]", "\xff"])
def test_a_damaged_file_means_that_nothing_is_lost(tmp_path: Path, text: str) -> None:
    (tmp_path / "ruined.json").write_bytes(text.encode("latin-1"))
    assert lost(Ruined(tmp_path)) == []


def saved(folder: Path, *steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=9)
    for step in steps:
        checkpoints.save({"w": torch.full((3,), float(step))}, StateInfo(run_id="x-1", step=step, rounds=()))
    return checkpoints


def test_the_newest_checkpoint_is_one_that_is_not_lost_and_the_others_are_set_aside(
    tmp_path: Path, warned: list[str]
) -> None:
    checkpoints = saved(tmp_path, 2, 4, 5)
    checkpoints.ruined.judge(4, False)
    found = checkpoints.newest()
    assert found is not None
    assert found[1].step == 2
    assert [("step-00000005" in text, "its loss was not finite" in text) for text in warned] == [
        (True, True),
        (False, True),
    ]
    assert sorted(path.name for path in tmp_path.glob("step-*")) == [
        "step-00000002.safetensors",
        "step-00000004.safetensors.ruined",
        "step-00000005.safetensors.ruined",
    ]
    again = saved(tmp_path, 5).newest()
    assert again is not None, "the same step of the training that went on from step 2"
    assert again[1].step == 5


def test_a_folder_with_nothing_but_lost_checkpoints_has_none(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 4)
    checkpoints.ruined.judge(4, False)
    assert checkpoints.newest() is None
    assert lost(checkpoints.ruined) == [], "the training begins anew"


def test_resume_takes_no_lost_checkpoint_whether_it_is_named_or_not_and_changes_nothing(
    tmp_path: Path, warned: list[str]
) -> None:
    saved(tmp_path, 2, 4).ruined.judge(4, False)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert find(tmp_path)[1].step == 2
    assert [("step-00000004" in text, "not finite" in text) for text in warned] == [(True, True)]
    with pytest.raises(UserError, match="no whole checkpoint"):
        find(tmp_path / "step-00000004.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
