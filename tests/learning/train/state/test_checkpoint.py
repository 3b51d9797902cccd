"""A checkpoint is whole or not there."""

import errno
import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.records.state import StateInfo
from tests.fork_server import said_by


def info(step: int = 7) -> StateInfo:
    return StateInfo(run_id="demo-0123456789abcdef", step=step, rounds=("ab12", "cd34"))


def at_noon() -> float:
    """All on one day, of which one checkpoint is kept beside the newest."""
    return 43_200.0


def tensors() -> dict[str, Tensor]:
    return {
        "weight": torch.arange(6.0).reshape(2, 3),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "step": torch.tensor(7.0),
        "count": torch.tensor([1, 2], dtype=torch.int64),
    }


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "model.safetensors"
    checkpoint.save(path, tensors(), info())
    loaded, loaded_info = checkpoint.load(path)
    assert loaded_info == info()
    assert loaded.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(loaded[name], tensor)
        assert loaded[name].dtype == tensor.dtype
    assert files(path.parent) == ["model.safetensors"]


def test_parameters_that_need_gradients_are_saved(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "x.safetensors", {"w": torch.nn.Parameter(torch.ones(2))}, info())
    assert not checkpoint.load(tmp_path / "x.safetensors")[0]["w"].requires_grad


def test_every_length_of_a_truncated_file_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, tensors(), info())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"x\.safetensors"):
            checkpoint.load(path)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, b"\xff" * 100, json.dumps({"a": 1}).encode()])
def test_a_foreign_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"foreign\.safetensors"):
        checkpoint.load(path)


def test_safetensors_of_somebody_else_are_named(tmp_path: Path) -> None:
    for number, metadata in enumerate([None, {"format": "pt"}]):
        path = tmp_path / f"{number}.safetensors"
        save_file({"w": torch.ones(1)}, path, metadata=metadata)
        with pytest.raises(ValueError, match=rf"{number}\.safetensors is not a checkpoint of dedloc_kit"):
            checkpoint.load(path)


@pytest.mark.parametrize("text", ["no json", "[]", '{"run_id": "x"}', '{"run_id": "x", "step": -1, "rounds": []}'])
def test_safetensors_with_unusable_info_are_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.safetensors"
    save_file({"w": torch.ones(1)}, path, metadata={"dedloc_kit.state_info": text})
    with pytest.raises(ValueError, match=r"odd\.safetensors"):
        checkpoint.load(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_finite_are_neither_saved_nor_loaded(tmp_path: Path, value: float) -> None:
    bad = {"w": torch.tensor([1.0, value])}
    with pytest.raises(ValueError, match=r"bad\.safetensors: the tensor 'w'"):
        checkpoint.save(tmp_path / "bad.safetensors", bad, info())
    assert files(tmp_path) == []
    save_file(bad, tmp_path / "bad.safetensors", metadata={"dedloc_kit.state_info": info().model_dump_json()})
    with pytest.raises(ValueError, match=r"bad\.safetensors: the tensor 'w'"):
        checkpoint.load(tmp_path / "bad.safetensors")


def test_a_missing_file_is_a_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none.safetensors")


def test_a_folder_that_cannot_be_made_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as caught:
        checkpoint.save(tmp_path / "file" / "x.safetensors", tensors(), info())
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be used for checkpoints"):
        Checkpoints(tmp_path / "file" / "checkpoints")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_reported_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "x.safetensors"
    checkpoint.save(path, tensors(), info(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(UserError, match="No space left on device"):
            checkpoint.save(path, tensors(), info(2))
    assert checkpoint.load(path)[1].step == 1
    assert files(tmp_path) == ["x.safetensors"]


def test_a_write_that_fails_inside_safetensors_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(UserError, match="cannot be written") as caught:
            checkpoint.save(tmp_path / "x.safetensors", {"w": torch.ones(100_000)}, info())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == []


@pytest.mark.child
def test_a_kill_in_the_middle_of_a_save_leaves_nothing_to_load(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(tensors(), info(1))
    killed_at_the_rename = f"""
import os, signal, torch
from pathlib import Path
from dedloc_kit.records.state import StateInfo
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
Checkpoints(Path({str(tmp_path)!r})).save({{"w": torch.ones(3)}}, StateInfo(run_id="x", step=2, rounds=()))
"""
    said_by(killed_at_the_rename, returncode=-signal.SIGKILL)
    assert files(tmp_path) == [".step-00000002.safetensors.tmp", "step-00000001.safetensors"]

    after_the_kill = Checkpoints(tmp_path)
    assert files(tmp_path) == ["step-00000001.safetensors"]
    newest = after_the_kill.newest()
    assert newest is not None
    assert newest[1].step == 1


def test_an_empty_folder_has_no_newest(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new").newest() is None


def test_only_the_newest_few_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, clock=at_noon)
    assert [checkpoints.save(tensors(), info(step)).name for step in (9, 10, 100)] == [
        "step-00000009.safetensors",
        "step-00000010.safetensors",
        "step-00000100.safetensors",
    ]
    assert files(tmp_path) == ["step-00000010.safetensors", "step-00000100.safetensors"]


def test_the_order_is_by_number_even_beyond_eight_digits(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, clock=at_noon)
    for step in (99_999_998, 99_999_999, 100_000_000):
        checkpoints.save(tensors(), info(step))
    newest = checkpoints.newest()
    assert newest is not None
    assert newest[1].step == 100_000_000


def test_a_damaged_newest_falls_back_to_the_one_before_and_warns(tmp_path: Path, warned: list[str]) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save({"w": torch.tensor([float(step)])}, info(step))
    for damaged in ("step-00000002.safetensors", "step-00000003.safetensors"):
        (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:-1])

    newest = checkpoints.newest()

    assert newest is not None
    assert newest[1].step == 1
    assert newest[0]["w"].tolist() == [1.0]
    assert len(warned) == 2
    assert "step-00000003.safetensors" in warned[0]
    assert "step-00000002.safetensors" in warned[1]
    assert not any("\n" in warning for warning in warned)


def test_after_a_fall_back_the_damaged_file_does_not_push_out_new_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, clock=at_noon)
    (tmp_path / "step-00000050.safetensors").write_bytes(b"damaged")
    assert checkpoints.newest() is None
    checkpoints.save(tensors(), info(41))
    newest = checkpoints.newest()
    assert newest is not None
    assert newest[1].step == 41
    assert files(tmp_path) == ["step-00000041.safetensors", "step-00000050.safetensors.damaged"]


def test_a_file_that_a_person_put_there_comes_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoint.save(tmp_path / "step-of-mine.safetensors", tensors(), info(1000))
    checkpoints.save(tensors(), info(1))
    newest = checkpoints.newest()
    assert newest is not None
    assert newest[1].step == 1


def a_loss(checkpoints: Checkpoints, step: int, loss: float) -> None:
    checkpoints.save(tensors(), info(step))
    checkpoints.rate(step, loss)


def test_the_best_is_kept_beside_the_newest_also_after_a_restart(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, clock=at_noon)
    for step, loss in ((1, 3.0), (2, 2.0), (3, 2.5)):
        a_loss(checkpoints, step, loss)
    again = Checkpoints(tmp_path, keep=1, clock=at_noon)
    a_loss(again, 4, 2.25)
    assert files(tmp_path) == ["best.json", "step-00000002.safetensors", "step-00000004.safetensors"]
    assert json.loads((tmp_path / "best.json").read_text()) == {"step": 2, "loss": 2.0}
    a_loss(again, 5, 1.5)
    again.save(tensors(), info(6))
    assert files(tmp_path) == ["best.json", "step-00000005.safetensors", "step-00000006.safetensors"]


def test_a_step_that_is_being_evaluated_is_spared_and_can_be_the_best_when_that_is_done(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, clock=at_noon)
    checkpoints.save(tensors(), info(1))
    for step in (2, 3):
        checkpoints.save(tensors(), info(step), spare=1)
    checkpoints.rate(1, 2.0)
    checkpoints.rate(2, 1.0)  # nothing of it is left
    checkpoints.save(tensors(), info(4))
    assert checkpoints.best is not None
    assert checkpoints.best.step == 1
    assert files(tmp_path) == ["best.json", "step-00000001.safetensors", "step-00000004.safetensors"]


def test_a_step_that_is_done_again_is_no_longer_the_best(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1, clock=at_noon)
    a_loss(checkpoints, 5, 1.0)
    checkpoints.save(tensors(), info(5))
    assert (checkpoints.best, Checkpoints(tmp_path).best) == (None, None)
    checkpoints.rate(5, 3.0)
    assert checkpoints.best is not None


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"step": 1}', '{"step": 1, "loss": NaN}'])
def test_a_damaged_mark_is_as_none(tmp_path: Path, text: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    a_loss(checkpoints, 1, 1.0)
    (tmp_path / "best.json").write_text(text)
    assert Checkpoints(tmp_path).best is None


@pytest.mark.parametrize("name", ["best.json", "ruined.json"])
def test_a_mark_that_cannot_be_read_now_is_not_as_none(tmp_path: Path, name: str) -> None:
    """Or the best checkpoint would be removed as an old one, and one of a diverged training taken."""
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        Checkpoints(tmp_path)


def test_a_mark_of_a_checkpoint_that_is_gone_is_as_none(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    a_loss(checkpoints, 1, 1.0)
    (tmp_path / "step-00000001.safetensors").unlink()
    assert Checkpoints(tmp_path).best is None


def test_a_mark_that_cannot_be_written_is_reported_and_the_old_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    a_loss(checkpoints, 1, 2.0)
    checkpoints.save(tensors(), info(2))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(UserError, match="No space left"):
            checkpoints.rate(2, 1.0)
    assert checkpoints.best == Checkpoints(tmp_path).best
    assert checkpoints.best is not None
    assert checkpoints.best.step == 1
