"""A checkpoint that is read as its tensors are needed: neither its size nor the optimizer's state has to fit in memory.

What was opened stays whole, though the run removes the file or puts another in its place meanwhile.
"""

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.state.checkpoint import INFO_KEY, KINDS, is_finite
from dedloc_kit.records.state import StateInfo

MAX_HEAD = 100_000_000
"""Bytes, as the library of safetensors has it."""
_DTYPES = {kind: dtype for dtype, kind in KINDS.items()}


class Mapped(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name, each a view of the file: not to be written to.

    :ivar info: what the checkpoint says of itself
    """

    def __init__(self, path: Path) -> None:
        """Raises ValueError, naming the file, if it is cut off or no checkpoint of ours; OSError: it cannot be read."""
        self._path = path
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            begin = 8 + int.from_bytes(file.read(8), "little")
            if not 8 < begin <= min(size, MAX_HEAD):
                raise ValueError(f"{path} is damaged or not a checkpoint")
            head = file.read(begin - 8)
            # To be written to by this process alone, so that torch takes it; nothing is.
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        try:
            values = json.loads(head)
            self.info = StateInfo.parse(json.loads(values.pop("__metadata__")[INFO_KEY]))
            self._places = {str(name): _place(value, begin, size) for name, value in values.items()}
        except KeyError:
            raise ValueError(f"{path} is not a checkpoint of dedloc_kit") from None
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise ValueError(f"{path} is damaged or not a checkpoint") from None

    def __getitem__(self, name: str) -> Tensor:
        """Raises ValueError, naming the file, if it holds a number that is not finite."""
        dtype, shape, begin = self._places[name]
        if hasattr(mmap, "MADV_DONTNEED"):  # what was read before is read again if it is needed again
            self._bytes.madvise(mmap.MADV_DONTNEED)
        count = math.prod(shape)
        if not count:
            return torch.empty(shape, dtype=dtype)
        tensor = torch.frombuffer(self._bytes, dtype=dtype, count=count, offset=begin).view(shape)
        if not is_finite(tensor):
            raise ValueError(f"{self._path}: the tensor '{name}' holds numbers that are not finite")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places


def _place(value: Any, first: int, size: int) -> tuple[torch.dtype, tuple[int, ...], int]:
    """Type, shape and first byte in the file, of what the head says of a tensor; raises ValueError or TypeError."""
    dtype, shape, (begin, end) = _DTYPES[value["dtype"]], tuple(value["shape"]), value["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)) or len(shape) > 8:
        raise ValueError("no shape")
    if end - begin != math.prod(shape) * dtype.itemsize or first + end > size:
        raise ValueError("it is cut off")
    return dtype, shape, first + begin
