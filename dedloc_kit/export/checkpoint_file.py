"""The model in a checkpoint, of which each tensor is read when it is needed, and the optimizer's state never.

What was opened stays whole, though the run removes the file or puts another in its place meanwhile. It is read, not
mapped: of a mapped file that somebody cuts off the process would die.
"""

import json
import math
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dedloc_kit.learning.train.state.checkpoint import INFO_KEY, is_finite
from dedloc_kit.records.state import StateInfo

MAX_HEAD = 100_000_000
"""Bytes, as the library of safetensors has it."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class _Stored(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """Of its bytes in the file."""


class CheckpointFile(Mapping[str, Tensor]):
    """The tensors of the model, or of its stages and experts, by their names in the checkpoint.

    :ivar info: what the checkpoint says of itself
    """

    def __init__(self, path: Path) -> None:
        """Raises ValueError, naming the file, if it is cut off or no checkpoint of ours; OSError: it cannot be read."""
        self._path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        size = os.fstat(self._file).st_size
        begin = 8 + int.from_bytes(os.pread(self._file, 8, 0), "little")
        if not 8 < begin <= min(size, MAX_HEAD):
            raise ValueError(f"{path} is damaged or not a checkpoint")
        try:
            values = json.loads(os.pread(self._file, begin - 8, 8))
            self.info = StateInfo.parse(json.loads(values.pop("__metadata__")[INFO_KEY]))
            stored = {str(name): _stored(value, begin, size) for name, value in values.items()}
        except KeyError:
            raise ValueError(f"{path} is not a checkpoint of dedloc_kit") from None
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{path} is damaged or not a checkpoint") from None
        self._stored = {name: each for name, each in stored.items() if ".model." in f".{name}"}

    def __getitem__(self, name: str) -> Tensor:
        """Raises ValueError, naming the file, if it is cut off or holds a number that is not finite."""
        stored = self._stored[name]
        tensor = torch.empty(stored.shape, dtype=stored.dtype)
        self._read(name, tensor)
        return tensor

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor; none if there is no such."""
        return self._stored[name].shape if name in self._stored else None

    def read_into(self, name: str, tensor: Tensor) -> None:
        """Read a tensor into another one of its shape, without a copy on the way; errors as `__getitem__`."""
        if tensor.dtype is self._stored[name].dtype and tensor.is_contiguous() and tensor.device.type == "cpu":
            self._read(name, tensor.detach())
        else:
            tensor.detach().copy_(self[name])

    def _read(self, name: str, tensor: Tensor) -> None:
        if tensor.numel():
            rest = tensor.reshape(-1).view(torch.uint8).numpy().data
            at = self._stored[name].begin
            while len(rest):
                if not (read := os.preadv(self._file, [rest], at)):
                    raise ValueError(f"{self._path} was cut off while it was read")
                rest, at = rest[read:], at + read
        if not is_finite(tensor):
            raise ValueError(f"{self._path}: the tensor '{name}' holds numbers that are not finite")

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored


def _stored(value: Any, first: int, size: int) -> _Stored:
    """What the head says of a tensor; raises ValueError, KeyError or TypeError."""
    dtype, shape, (begin, end) = _DTYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)) or len(shape) > 8:
        raise ValueError("no shape")
    if end - begin != math.prod(shape) * dtype.itemsize or first + end > size:
        raise ValueError("it is cut off")
    return _Stored(dtype, shape, first + begin)
