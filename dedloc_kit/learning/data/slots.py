"""Batches in shared memory: where each tensor lies in a slot."""

import math
import mmap
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Batch = dict[str, Tensor]

_ALIGNED = 64
"""Bytes, to which each tensor of a slot is aligned."""


class Part(NamedTuple):
    """Where a tensor lies in a slot."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    """Bytes from the slot's beginning."""


class Lent(NamedTuple):
    """A batch whose tensors may lie in memory that is used again: they are valid until it is given back."""

    batch: Batch
    give_back: Callable[[], None]


def laid_out(batch: Batch) -> tuple[list[Part], int]:
    """Where the tensors of a batch lie in a slot, and how many bytes they take together."""
    parts, end = [], 0
    for name, values in batch.items():
        parts.append(Part(name, values.dtype, tuple(values.shape), end))
        end += -(-values.nbytes // _ALIGNED) * _ALIGNED
    return parts, end


def batch_in(slot: Tensor, parts: list[Part]) -> Batch:
    """The tensors of a slot, or of a copy of it; they share its memory. uint8 [bytes]"""
    found = {}
    for part in parts:
        size = part.dtype.itemsize * math.prod(part.shape)
        found[part.name] = slot[part.begin : part.begin + size].view(part.dtype).view(part.shape)
    return found


def mapped(handle: int, size: int) -> Tensor:
    """Memory that other processes may map too; the handle is closed. uint8 [size]"""
    try:
        return torch.frombuffer(mmap.mmap(handle, size), dtype=torch.uint8)
    finally:
        os.close(handle)


def new_memory(size: int) -> tuple[int, Tensor]:
    """Anonymous memory of at least `size` bytes, with a handle by which another process maps it too."""
    size = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    handle = os.memfd_create("batches")
    os.ftruncate(handle, size)
    return handle, mapped(os.dup(handle), size)
