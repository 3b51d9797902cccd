"""Copies of experts that others keep."""

from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.errors import UserError
from dedloc_kit.experts import stored as module
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.keeping import State
from dedloc_kit.experts.stored import Stored
from dedloc_kit.learning.train.state.checkpoint import load

ONE, OTHER = ExpertName(0, 1, 2), ExpertName(3, 0, 0)


def state(step: int) -> State:
    return {"model.up": torch.full((4096,), float(step))}, step


def value(copy: State | None) -> float:
    assert copy is not None
    assert copy[0]["model.up"].unique().tolist() == [float(copy[1])]
    return float(copy[1])


def test_the_newest_copy_of_each_is_in_a_file(tmp_path: Path) -> None:
    stored = Stored(tmp_path, "run")
    assert stored.get(ONE) is None
    for step in (1, 2):
        stored.put(ONE, state(step))
        assert value(stored.get(ONE)) == step
        stored.write()
        assert load(tmp_path / "0.1.2.safetensors")[1].step == step
    assert [path.name for path in tmp_path.iterdir()] == ["0.1.2.safetensors"]


def test_what_cannot_be_written_is_there_until_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Stored(tmp_path, "run")
    stored.put(ONE, state(1))

    def full(*_: Any) -> None:
        raise UserError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(module, "save", full)
        stored.write()
    assert value(stored.get(ONE)) == 1
    assert not list(tmp_path.iterdir())
    stored.write()
    assert list(tmp_path.iterdir())


def test_a_later_process_of_the_run_has_what_is_there_once_and_then_it_goes(tmp_path: Path) -> None:
    earlier = Stored(tmp_path, "run")
    for name in (ONE, OTHER):
        earlier.put(name, state(7))
    earlier.write()
    assert not list(Stored(tmp_path, "another").of_earlier([]))
    assert not list(tmp_path.iterdir())
    earlier.put(ONE, state(8))
    earlier.put(OTHER, state(8))
    earlier.write()
    (tmp_path / f"{OTHER}.safetensors").write_bytes(b"cut off")
    later = Stored(tmp_path, "run")
    assert later.get(ONE) is None
    assert [(name, value(copy)) for name, copy in later.of_earlier([ONE, OTHER])] == [(ONE, 8)]
    assert not list(later.of_earlier([ONE, OTHER]))
    assert not list(tmp_path.iterdir())


def test_after_a_step_back_there_are_none(tmp_path: Path) -> None:
    stored = Stored(tmp_path, "run")
    stored.put(ONE, state(1))
    stored.write()
    stored.put(OTHER, state(1))
    stored.clear()
    stored.write()
    assert stored.get(ONE) is stored.get(OTHER) is None
    assert not list(tmp_path.iterdir())
