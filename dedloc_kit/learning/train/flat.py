"""All parameters (or their gradients) as one flat vector, so that it can be cut anywhere among the peers."""

import asyncio
import itertools
import math
import mmap
import multiprocessing
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dedloc_kit.errors import UserError

# Below this size a tensor is not worth compressing much: biases and normalisation layers are few and sensitive.
SMALL_TENSOR = 8192
ALIGNED = 64
"""Bytes; what begins elsewhere is computed more slowly, and may be rounded otherwise."""
CHUNK = 2**17
"""Values that travel in one message at most: small enough to overlap sending, adding up and encoding."""
GRID_CHUNKS, SMALL_CHUNK = 320, 2**15
"""Chunks of a large model, so that 64 reducers get even shares; values of one at least, for each costs some time."""
FEW_CHUNKS, SMALLEST_CHUNK = 16, 2**12
"""The same of a model so small that these are fewer chunks than members."""


class Scratch(threading.local):
    """Room for float32 numbers, for each thread its own, kept from use to use.

    Memory that is new each time can cost more than the arithmetic: the system hands it out page by page, cleared.
    """

    def __init__(self) -> None:
        self._room = torch.empty(0)

    def of(self, size: int, device: torch.device) -> Tensor:
        """So many, whose content is that of the last use."""
        if self._room.numel() < size or self._room.device != device:
            self._room = torch.empty(size, device=device)
        return self._room[:size]

    def like(self, values: Tensor) -> Tensor:
        """A tensor of the same shape."""
        return self.of(values.numel(), values.device).view(values.shape)


@dataclass(frozen=True)
class FlatLayout:
    """Where each tensor lies in the flat vector: the large ones first, the small ones at the end."""

    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    size: int
    large: int
    """Values that belong to large tensors: everything from here on is small."""

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "FlatLayout":
        order = sorted(range(len(tensors)), key=lambda index: (tensors[index].numel() < SMALL_TENSOR, index))
        offsets, position, large = [0] * len(tensors), 0, 0
        for index in order:
            offsets[index] = position
            position += tensors[index].numel()
            if tensors[index].numel() >= SMALL_TENSOR:
                large = position
        return cls(tuple(tensor.shape for tensor in tensors), tuple(offsets), position, large)

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors inside a flat vector, in their own order; they share its memory."""
        return [
            flat[offset : offset + math.prod(shape)].view(shape)
            for shape, offset in zip(self.shapes, self.offsets, strict=True)
        ]

    def part(self, tensors: Sequence[Tensor], begin: int, end: int) -> Tensor:
        """What of these tensors lies there in the flat vector: float32 [end - begin] on the CPU."""
        found = torch.empty(end - begin)
        for tensor, offset in zip(tensors, self.offsets, strict=True):
            first, last = max(begin, offset), min(end, offset + tensor.numel())
            if first < last:
                found[first - begin : last - begin] = tensor.reshape(-1)[first - offset : last - offset]
        return found

    def chunks(self, shares: Sequence[int]) -> list[list[tuple[int, int]]]:
        """The flat vector in pieces (begin, end), for each peer its own, given how many values each one reduces."""
        ends = list(itertools.accumulate(shares))
        if ends[-1] != self.size:
            raise ValueError(f"the shares are {ends[-1]} values, the vector has {self.size}")
        return [list(self.pieces(end - share, end, CHUNK)) for share, end in zip(shares, ends, strict=True)]

    def grid(self) -> tuple[tuple[int, int], ...]:
        """The flat vector in chunks (begin, end), which depend on nothing else: what was encoded for one group of peers
        is of use for another."""
        length = max(SMALL_CHUNK, -(-self.size // GRID_CHUNKS))
        if self.size < FEW_CHUNKS * SMALL_CHUNK:
            length = max(SMALLEST_CHUNK, -(-self.size // FEW_CHUNKS))
        return tuple(self.pieces(0, self.size, min(CHUNK, -(-length // 256) * 256)))

    def pieces(self, begin: int, end: int, length: int) -> Iterator[tuple[int, int]]:
        """These values in pieces of this length at most; none has values of both large and small tensors."""
        while begin < end:
            border = self.large if begin < self.large else self.size
            stop = min(end, border, begin + length)
            yield begin, stop
            begin = stop


def shared_zeros(size: int) -> Tensor:
    """float32 [size] in memory that the processes forked later share with this one.

    They do not take it again when it is written to, and /dev/shm, which is small in containers, is not asked for it.
    """
    return torch.frombuffer(mmap.mmap(-1, 4 * max(1, size)), dtype=torch.float32)[:size]


def untouched_zeros(size: int) -> Tensor:
    """float32 [size] of this process that takes no memory until it is written to: a reducer writes to its own part of
    such a vector only."""
    return torch.from_numpy(np.zeros(size, dtype=np.float32))


Room = Callable[[int], Tensor]
"""Gives such a vector of so many zeros."""


def zeros_on_disk(folder: Path, size: int) -> Tensor:
    """The same in a file of this folder without a name, which goes with the last process that has it: of it only that
    lies in the memory for which there is room. Raises UserError if the disk is full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # The disk's blocks now: writing to memory that has none would end this process on a full disk.
            os.posix_fallocate(file.fileno(), 0, 4 * max(1, size))
            # Not by Python's mmap, which keeps the file open: of experts there may be more than a process may have.
            return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=True, size=max(1, size))[:size]
    except OSError as error:
        raise UserError(
            f"the training state does not fit into {folder} ({error.strerror}): {4 * size / 1e6:.0f} MB more are needed"
        ) from None


def zeros_like(tensors: Collection[Tensor], room: Room) -> list[Tensor]:
    """Zeros of the shapes and types of these, in one such vector."""
    sizes = [math.ceil(tensor.nbytes / ALIGNED) * ALIGNED // 4 for tensor in tensors]
    return [
        part.view(torch.uint8)[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for part, tensor in zip(room(sum(sizes)).split(sizes), tensors, strict=True)
    ]


def placed_together(tensors: Collection[Tensor], room: Room) -> list[Tensor]:
    """Copies of tensors of any types there, in one vector."""
    return [own.copy_(tensor.detach()) for own, tensor in zip(zeros_like(tensors, room), tensors, strict=True)]


def placed(tensor: Tensor, room: Room) -> Tensor:
    """A copy of a tensor of any type there; of a small one anywhere."""
    if tensor.numel() < SMALL_TENSOR or room is shared_zeros:
        return tensor.detach().clone()
    return placed_together([tensor], room)[0]


class SharedVector:
    """A flat vector that the processes forked later share with this one; all zero at first."""

    def __init__(self, layout: FlatLayout, room: Room = shared_zeros) -> None:
        self.layout = layout
        self._values = room(layout.size)
        self._lock = multiprocessing.Lock()

    @contextmanager
    def held(self) -> Iterator[Tensor]:
        """float32 [size], which no other process changes meanwhile."""
        with self._lock:
            yield self._values

    @asynccontextmanager
    async def awaited(self) -> AsyncIterator[Tensor]:
        """The same in an event loop, which goes on until the vector is free."""
        await asyncio.get_running_loop().run_in_executor(None, self._lock.acquire)
        try:
            yield self._values
        finally:
            self._lock.release()
