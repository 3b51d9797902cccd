"""Tensors of a model's checkpoint, by name: those that are wanted, each checked against the manifest."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from dedloc_kit.blocks.weights.manifest import INDEX, SINGLE, Manifest, StoredTensor, opened, sha256, stored_as
from dedloc_kit.blocks.weights.quantized import is_linear, quantized
from dedloc_kit.errors import UserError
from dedloc_kit.hub import HubUnavailable, model_files, repository_and_revision

WeightFormat = Literal["float32", "bfloat16", "int8", "int4"]
"""With int8 and int4 all but the linear layers' weights is float32."""
WHOLE = (SINGLE, INDEX, "model-*-of-*.safetensors")
"""The files with all of a model's weights."""
_FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_COMMIT = r"[0-9a-f]{40}"


def locate(model: str, files: Iterable[str] = WHOLE) -> Path:
    """The folder with these files of a model, from the Hub if need be.

    :param model: an absolute path, or `OWNER/NAME@COMMIT` of the Hub

    Raises UserError with the fix if it is not there.
    """
    if (folder := Path(model)).is_absolute() and folder.is_dir():
        return folder
    repository, commit = repository_and_revision(model) or (None, None)
    if repository is None:
        raise UserError(f"{model} is neither a folder nor OWNER/NAME@COMMIT of the Hub")
    if not re.fullmatch(_COMMIT, commit or ""):
        raise UserError(f"{model} must name a commit, so that all serve the same weights: {repository}@ and 40 digits")
    try:
        return model_files(repository, str(commit), sorted(files))
    except HubUnavailable as error:
        raise UserError(f"{repository} cannot be read now ({error}); try again later") from None


def shards(manifest: Manifest, names: Iterable[str]) -> set[str]:
    """The files that hold these tensors; raises UserError if the model has no such tensor."""
    names = list(names)
    if missing := [name for name in names if name not in manifest.tensors]:
        raise UserError(f"the model has no tensor {missing[0]!r:.80}")
    return {manifest.tensors[name].file for name in names}


def read(folder: Path, manifest: Manifest, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """These tensors as they are stored, one after the other, file by file; each is a view of its file.

    Raises UserError if one is missing, is not what the manifest says, or holds no floating-point numbers.
    """
    names = set(names)
    shards(manifest, names)
    order = sorted((manifest.tensors[name].file, name) for name in names)
    for shard, group in groupby(order, key=lambda entry: entry[0]):
        path = folder / shard
        with opened(path) as file:
            there = set(file.keys())
            for _, name in group:
                expected = manifest.tensors[name]
                if name not in there:
                    raise UserError(f"{path} has no tensor {name}; it is not the file that the manifest is of")
                if stored_as(file, name) != (expected.dtype, expected.shape):
                    raise UserError(f"{name} in {path} has not the shape and type of the manifest")
                yield name, _checked(name, file.get_tensor(name), expected, path)


def read_each(folder: Path, manifest: Manifest, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """The same of a folder in which each tensor's bytes are a file of their own, with their hash as its name."""
    names = set(names)
    shards(manifest, names)
    for name in sorted(names):
        expected = manifest.tensors[name]
        path = folder / expected.sha256
        yield name, _checked(name, _bytes(path, expected.size), expected, path)


def _bytes(path: Path, size: int) -> Tensor:
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    try:
        if path.stat().st_size != size:
            raise UserError(f"{path} is damaged: it has another size than the manifest says; fetch it again")
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} cannot be read ({error!s:.200})") from None


def _checked(name: str, tensor: Tensor, expected: StoredTensor, path: Path) -> Tensor:
    """A tensor, or its bytes, as what the manifest says it is."""
    if expected.dtype not in _FLOATS:
        raise UserError(f"{name} is stored as {expected.dtype}, and only floating-point numbers are read")
    if sha256(tensor) != expected.sha256:
        raise UserError(f"{name} in {path} is damaged: its hash is not the manifest's; get the file again")
    return tensor.view(_FLOATS[expected.dtype]).reshape(expected.shape)


def load(module: nn.Module, tensors: Iterable[tuple[str, Tensor]], form: WeightFormat) -> None:
    """Put tensors into a module, by its own names for them; it may be on the device `meta`.

    Each is converted as it comes, so no more than one is in memory beside the result. Raises UserError if a tensor is
    not the module's or has another shape, and if one that the module needs has not come.
    """
    missing = set(module.state_dict())
    for name, tensor in tensors:
        if name not in missing:
            raise UserError(f"this part of the model has no place for {name!r:.80}")
        missing.remove(name)
        _put(module, name, tensor, form)
    if missing:
        raise UserError(f"no weights came for {min(missing)}")


def _put(module: nn.Module, name: str, tensor: Tensor, form: WeightFormat) -> None:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    shape = tuple(getattr(owner, leaf).shape)
    if tuple(tensor.shape) != shape:
        raise UserError(f"{name} has the shape {tuple(tensor.shape)}, this part of the model wants {shape}")
    if form in ("int8", "int4") and leaf == "weight" and path and is_linear(owner):
        module.set_submodule(path, quantized(owner, tensor, form))
        return
    dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
    # A copy: what is a view of a file would end this process if somebody shortened that.
    owner.load_state_dict({leaf: tensor.to(dtype, copy=True)}, strict=False, assign=True)
