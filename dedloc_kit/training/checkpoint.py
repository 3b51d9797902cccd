"""Checkpoints: safetensors files that are either whole or not there."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dedloc_kit.errors import UserError
from dedloc_kit.records import StateInfo

_INFO_KEY = "dedloc_kit.state_info"


def save(path: Path, tensors: dict[str, Tensor], info: StateInfo) -> None:
    """Write the tensors and their info; whoever looks sees the old file or the whole new one, even after a crash.

    Raises UserError if the folder cannot be written or the disk is full, and ValueError if a tensor is not
    finite: such a state must never push a good checkpoint out. The tensors must not share memory.
    """
    _require_finite(tensors, str(path))
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # A folder, since safetensors writes to a file of a random name beside the one that it is asked for.
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        save_file(on_cpu, temporary / path.name, metadata={_INFO_KEY: info.model_dump_json()})
        _sync(temporary / path.name)
        os.replace(temporary / path.name, path)
        _sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written ({error}); make room on the disk or choose a folder that you may write to"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(path: Path) -> tuple[dict[str, Tensor], StateInfo]:
    """Read a checkpoint to the CPU.

    Raises ValueError, naming the file, if it is truncated, not a checkpoint of ours or holds a number that is
    not finite; OSError (FileNotFoundError, PermissionError) if it cannot be read at all.
    """
    path.open("rb").close()  # safetensors reports a file that is missing or forbidden less clearly
    try:
        with safe_open(path, framework="pt") as file:
            info = StateInfo.parse(json.loads((file.metadata() or {})[_INFO_KEY]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
    except KeyError:
        raise ValueError(f"{path} is not a checkpoint of dedloc_kit") from None
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a checkpoint ({error})") from None
    _require_finite(tensors, str(path))
    return tensors, info


class Checkpoints:
    """The newest few checkpoints of one run in a folder, `step-00000042.safetensors`. One process writes there."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        """Make the folder and clear away what a crash in the middle of a save left; UserError if that fails."""
        self.folder = folder
        self.keep = keep
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".step-*.safetensors.tmp"):
                shutil.rmtree(leftover)
        except OSError as error:
            raise UserError(f"{folder} cannot be used for checkpoints ({error.strerror}); choose another") from None

    def save(self, tensors: dict[str, Tensor], info: StateInfo) -> Path:
        """Write the checkpoint of `info.step`, then remove all but the newest `keep`; errors as `checkpoint.save`."""
        path = self.folder / f"step-{info.step:08d}.safetensors"
        save(path, tensors, info)
        for old in self._newest_first()[self.keep :]:
            old.unlink(missing_ok=True)
        return path

    def newest(self, warn: Callable[[str], None]) -> tuple[dict[str, Tensor], StateInfo] | None:
        """The newest checkpoint that is whole, or none if there is none.

        A damaged one is reported through `warn` and renamed to `*.damaged`: as the newest by its name it would
        otherwise push out the good ones that follow. UserError if a file cannot be read or renamed.
        """
        for path in self._newest_first():
            try:
                return load(path)
            except ValueError as error:
                warn(f"{error}; going back to the checkpoint before it")
                self._set_aside(path)
            except OSError as error:
                raise UserError(f"{path} cannot be read ({error.strerror}); check its permissions") from None
        return None

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"), key=_step_of, reverse=True)

    def _set_aside(self, path: Path) -> None:
        try:
            path.replace(path.with_name(f"{path.name}.damaged"))
        except OSError as error:
            raise UserError(f"{path} is damaged and cannot be renamed ({error.strerror}); remove it") from None


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("step-").removesuffix(".safetensors")
    return int(digits) if digits.isdecimal() else -1  # a file that a person put there comes last


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
