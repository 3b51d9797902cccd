"""Checkpoints: safetensors files that are either whole or not there."""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.state.retention import steps_to_keep
from dedloc_kit.learning.train.state.ruined import Ruined
from dedloc_kit.records.record import Record
from dedloc_kit.records.state import STATE_FILE, StateInfo

INFO_KEY = "dedloc_kit.state_info"
_SAVED_KEY = "dedloc_kit.saved"
"""When it was written, in whole seconds since 1970: the time of the file changes when a folder is copied."""
_MARK = "best.json"
_LOST = "belongs to a training that had diverged: its loss was not finite, or far above that of an untrained model"

Found = tuple[dict[str, Tensor], StateInfo]

_log = logging.getLogger(__name__)


def save(path: Path, tensors: dict[str, Tensor], info: StateInfo, saved: int | None = None) -> None:
    """Write the tensors and their info; whoever looks sees the old file or the whole new one, even after a crash.

    :param saved: the time to write beside them, in seconds since 1970
    Raises UserError if the folder cannot be written or the disk is full, and ValueError if a tensor is not
    finite: such a state must never push a good checkpoint out.
    """
    _require_finite(tensors, str(path))
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        metadata = {INFO_KEY: info.model_dump_json(), **({} if saved is None else {_SAVED_KEY: str(saved)})}
        save_file(whole, temporary / path.name, metadata)
        os.chmod(temporary / path.name, temporary.stat().st_mode & 0o666)  # it keeps everyone else out
        _sync(temporary / path.name)
        os.replace(temporary / path.name, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written ({error}); make room on the disk or choose a folder that you may write to"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(path: Path) -> Found:
    """Read a checkpoint to the CPU.

    Raises ValueError, naming the file, if it is truncated, not a checkpoint of ours or holds a number that is
    not finite; OSError (FileNotFoundError, PermissionError) if it cannot be read at all.
    """
    path.open("rb").close()  # safetensors reports a file that is missing or forbidden less clearly
    try:
        with safe_open(path, framework="pt") as file:
            info = StateInfo.parse(json.loads((file.metadata() or {})[INFO_KEY]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except KeyError:
        raise ValueError(f"{path} is not a checkpoint of dedloc_kit") from None
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a checkpoint ({error})") from None
    _require_finite(tensors, str(path))
    return tensors, info


def find(where: Path) -> Found:
    """The training state that a person points at; nothing there is changed, for another process may use it.

    :param where: a checkpoint, a folder of checkpoints (the newest that is whole is taken, but none of a training
        that had diverged), a run's folder that has one, or a copy of a run's Hub repository
    Raises UserError if there is no whole checkpoint.
    """
    folder = where / "checkpoints" if (where / "checkpoints").is_dir() else where
    candidates = [folder / STATE_FILE] if (folder / STATE_FILE).is_file() else _newest_first(folder)
    for path in candidates if where.is_dir() else [where]:
        if _step_of(path) in Ruined(path.parent):
            _log.warning("%s %s; it is not taken", path, _LOST)
            continue
        try:
            return load(path)
        except ValueError as error:
            _log.warning("%s", error)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}); check --resume") from None
    raise UserError(f"there is no whole checkpoint in {where} that is not lost; check --resume")


class Best(Record):
    """Which of the checkpoints did best on the held-out data."""

    step: int
    loss: float


class Checkpoints:
    """The newest few checkpoints of one run in a folder, `step-00000042.safetensors`, the last days' and the best one.

    Which one is the best is in `best.json`. One process writes to the folder.
    """

    def __init__(self, folder: Path, keep: int = 3, clock: Callable[[], float] = time.time) -> None:
        """Make the folder and clear away what a crash in the middle of a save left; UserError if the disk fails."""
        self.folder = folder
        self.keep = keep
        self._clock = clock
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".step-*.safetensors.tmp"):
                shutil.rmtree(leftover)
        except OSError as error:
            raise UserError(f"{folder} cannot be used for checkpoints ({error.strerror}); choose another") from None
        self.best = best_in(folder)
        self.ruined = Ruined(folder)
        self.protected: int | None = None

    def save(self, tensors: dict[str, Tensor], info: StateInfo, spare: int | None = None) -> Path:
        """Write the checkpoint of `info.step`, then remove those that need not stay.

        The newest `keep` stay, that of each of the last seven days (see `steps_to_keep`), best, protected and `spare`.

        :param spare: a step that is still being evaluated
        Errors as `checkpoint.save`.
        """
        path = self.path(info.step)
        if self.best is not None and info.step == self.best.step:
            self._mark(None)  # training went back to before this step: what was measured is lost with it
        save(path, tensors, info, int(self._clock()))
        best = None if self.best is None else self.best.step
        files = {_step_of(path): path for path in _newest_first(self.folder)}
        saved = {step: _time_of(file) for step, file in files.items() if step >= 0}
        lost = {step for step in saved if step in self.ruined}
        kept = {spare, best, self.protected, *steps_to_keep(saved, self.keep, lost)}
        for step in saved.keys() - kept:
            files[step].unlink(missing_ok=True)
        return path

    def protect(self, step: int | None) -> None:
        """Keep the checkpoint of this step, however old it is; the one before it no longer."""
        self.protected = step

    def kept(self) -> list[Path]:
        """The checkpoints that are there, newest first."""
        return _newest_first(self.folder)

    def rate(self, step: int, loss: float) -> None:
        """Learn the held-out loss of a step; its checkpoint, if there is one, is kept while none is better.

        Raises UserError if the mark cannot be written.
        """
        if self.path(step).exists() and (self.best is None or loss < self.best.loss):
            self._mark(Best(step=step, loss=loss))

    def forget_best(self) -> None:
        """What was measured compares with nothing any more; errors as `rate`."""
        self._mark(None)

    def newest(self) -> Found | None:
        """The newest checkpoint that is whole and of a training that had not diverged, or none if there is none.

        A damaged one is worth a warning and renamed to `*.damaged`, one of a training that has diverged to
        `*.ruined`: as the newest by its name it would otherwise push out the good ones that follow. UserError if a
        file cannot be read or renamed.
        """
        for path in _newest_first(self.folder):
            try:
                if _step_of(path) in self.ruined:
                    _log.warning("%s %s; going back to the checkpoint before it", path, _LOST)
                    self._set_aside(path, "ruined")
                    continue
                found = load(path)
            except ValueError as error:
                _log.warning("%s; going back to the checkpoint before it", error)
                self._set_aside(path, "damaged")
            except OSError as error:
                raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
            else:
                self.ruined.forget_newest()
                return found
        self.ruined.forget_newest()
        return None

    def step_to_use(self) -> int | None:
        """As the function of this name; nothing but the list of files is read."""
        return _to_use(self.folder, self.best, self.ruined)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, if there is one."""
        return path_of(self.folder, step)

    def _mark(self, best: Best | None) -> None:
        mark, temporary = self.folder / _MARK, self.folder / f".{_MARK}.tmp"
        try:
            if best is None:
                mark.unlink(missing_ok=True)
            else:
                temporary.write_text(best.model_dump_json() + "\n", encoding="utf-8")
                os.replace(temporary, mark)
        except OSError as error:
            raise UserError(f"{mark} cannot be written ({error}); make room on the disk") from None
        self.best = best

    def _set_aside(self, path: Path, why: str) -> None:
        try:
            path.replace(path.with_name(f"{path.name}.{why}"))
        except OSError as error:
            raise UserError(f"{path} is {why} and cannot be renamed ({error.strerror}); remove it") from None


def path_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is in a folder, if there is one."""
    return folder / f"step-{step:08d}.safetensors"


def best_in(folder: Path) -> Best | None:
    """Which checkpoint of a folder did best, if that is known and it is still there; UserError if it cannot be read."""
    try:
        best = Best.parse(json.loads((folder / _MARK).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError):
        return None  # never written, or damaged: the next evaluation is the best so far
    except OSError as error:  # not as if there were none: the best checkpoint would be removed as an old one
        raise UserError(f"{folder / _MARK} cannot be read ({error.strerror}); check the disk") from None
    return best if path_of(folder, best.step).exists() else None


def steps_in(folder: Path) -> list[int]:
    """The steps whose checkpoints a folder has, newest first; nothing there is changed."""
    return [step for path in _newest_first(folder) if (step := _step_of(path)) >= 0]


def step_to_use(folder: Path) -> int | None:
    """The step whose model people are to have: the best one, or, where none was measured, the newest.

    None of a training that had diverged; none at all if there is no other. UserError if it cannot be read.
    """
    return _to_use(folder, best_in(folder), Ruined(folder))


def _to_use(folder: Path, best: Best | None, ruined: Ruined) -> int | None:
    candidates = [*([] if best is None else [best.step]), *steps_in(folder)]
    return next((step for step in candidates if step not in ruined), None)


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"), key=_step_of, reverse=True)


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("step-").removesuffix(".safetensors")
    return int(digits) if digits.isdecimal() else -1  # a file that a person put there comes last


def _time_of(path: Path) -> int:
    """When a checkpoint was written; what the file's own time says if it does not tell."""
    try:
        with safe_open(path, framework="pt") as file:
            return int((file.metadata() or {})[_SAVED_KEY])
    except (SafetensorError, OSError, KeyError, ValueError):  # of an older version, or damaged
        try:
            return int(path.stat().st_mtime)
        except OSError:  # removed meanwhile
            return 0


def _require_finite(tensors: dict[str, Tensor], where: str) -> None:
    for name, tensor in tensors.items():
        if not is_finite(tensor):
            raise ValueError(f"{where}: the tensor '{name}' holds numbers that are not finite")


def is_finite(tensor: Tensor) -> bool:
    """Are all numbers finite? Their sum shows it much faster, unless it overflows."""
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum())):
        return True
    return bool(torch.isfinite(tensor).all())


def _sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
