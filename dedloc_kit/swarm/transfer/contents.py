"""What peers fetch from each other, as it travels: the whole training state, or the average of a recent round."""

import itertools
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from hivemind.utils import MSGPackSerializer
from pydantic import Field

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.records.record import Count, Digest, Record
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.network.service import decode
from dedloc_kit.swarm.transfer.protocol import Header, Request

MAX_PART_BYTES = 4 * CHUNK + 100
"""Of an average."""
_ALIGNMENT = 16
"""Bytes: a tensor of any type can lie there."""


@dataclass
class Content:
    """What a donor can send at once."""

    version: str
    metadata: bytes
    data: memoryview
    users: int = 0
    """Uploads that are running."""
    last_used: float = 0.0

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """It is kept for so long."""
        self.users += 1
        try:
            yield
        finally:
            self.users -= 1

    def touch(self, now: float) -> None:
        """It was used just now."""
        self.last_used = now


def version_of(info: StateInfo) -> str:
    """States with the same version are equal bit for bit, whoever holds them."""
    return f"{info.step}/{info.rounds[-1] if info.rounds else ''}"


def shared_bytes(size: int) -> torch.Tensor:
    """Memory that can be handed to another process of this peer: uint8, all zero.

    Raises UserError if there is not enough of it: a container's is small, and going beyond kills the process.
    """
    if os.path.isdir("/dev/shm"):
        free = shutil.disk_usage("/dev/shm").free
        if free < size:
            raise UserError(
                f"{size / 1e6:.0f} MB of shared memory are needed and {free / 1e6:.0f} MB are free in /dev/shm; "
                "start the container with more of it (docker run --shm-size)"
            )
    # Not `share_memory_`, which copies: a page of this is made when something is written there, not now.
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(size))


class StateLayout:
    """The tensors of a state one after the other as bytes. All peers of a run have the same tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._kinds = [(tensor.dtype, tensor.shape) for tensor in tensors]
        sizes = [dtype.itemsize * math.prod(shape) for dtype, shape in self._kinds]
        steps = [math.ceil(size / _ALIGNMENT) * _ALIGNMENT for size in sizes]
        self._slices = [
            slice(start, start + size) for start, size in zip(itertools.accumulate([0, *steps]), sizes, strict=False)
        ]
        self.size = sum(steps)

    def pack(self, tensors: Sequence[torch.Tensor], flat: torch.Tensor | None = None) -> torch.Tensor:
        """The tensors' bytes in this, or in shared memory: uint8, `size` long."""
        flat = shared_bytes(self.size) if flat is None else flat
        for own, tensor in zip(self.views(flat), tensors, strict=True):
            own.copy_(tensor)
        return flat

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The tensors inside the bytes; they share their memory."""
        return [
            flat[part].view(dtype).view(shape) for part, (dtype, shape) in zip(self._slices, self._kinds, strict=True)
        ]


@dataclass(frozen=True)
class ExpectedState:
    """What an honest donor's state looks like."""

    run_id: str
    size: int

    @property
    def request(self) -> Request:
        return Request(what="state")

    def accept(self, header: Header) -> None:
        """Raises ValueError if the donor's state is none of this run."""
        metadata = decode(header.metadata)
        if not isinstance(metadata, Mapping) or not isinstance(metadata.get("receipts"), list | tuple):
            raise ValueError("its metadata is none")
        info = StateInfo.parse(metadata.get("info"))
        for receipt in metadata["receipts"]:
            Receipt.parse(receipt)
        if info.run_id != self.run_id:
            raise ValueError(f"its state belongs to the run {info.run_id:.80}")
        if header.version != version_of(info):
            raise ValueError("it does not say which version its state is")
        if header.total != self.size:
            raise ValueError(f"its state has {header.total} bytes, ours has {self.size}")

    def check(self, header: Header, content: memoryview) -> None:
        """TrainingState.load looks at the numbers."""


class AverageInfo(Record):
    """What accompanies the parts of an average."""

    after: Digest
    round: Digest
    step: Count
    metadata: bytes
    lengths: Annotated[tuple[Count, ...], Field(max_length=100_000, strict=False)]


@dataclass(frozen=True)
class RecentAverage:
    """What the all-reduce of a complete round gave, kept as it was encoded for those who missed it."""

    after: str
    """The round before it."""
    round: str
    step: int
    """The global step that it led to."""
    metadata: bytes
    """Anything that the optimizer needs with it."""
    parts: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes of its parts."""
        return sum(map(len, self.parts))

    def content(self) -> Content:
        """The same as it travels."""
        return Content(self.round, self.info(), memoryview(b"".join(self.parts)))

    def info(self) -> bytes:
        """What travels before the parts."""
        info = AverageInfo(
            after=self.after,
            round=self.round,
            step=self.step,
            metadata=self.metadata,
            lengths=tuple(map(len, self.parts)),
        )
        return bytes(MSGPackSerializer.dumps(info.model_dump()))

    @classmethod
    def read(cls, metadata: bytes, content: memoryview) -> "RecentAverage":
        """As a donor has sent it; raises ValueError if it is none."""
        info = AverageInfo.parse(decode(metadata))
        parts = tuple(_cut(content, info.lengths))
        return cls(info.after, info.round, info.step, info.metadata, parts)


class StoredAverage:
    """The same on the disk, as it travels, in a file without a name; of it only that lies in the memory for which there
    is room. Raises OSError."""

    def __init__(self, average: RecentAverage, folder: Path) -> None:
        self.after, self.round, self._info = average.after, average.round, average.info()
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.writelines(average.parts)
            file.flush()
            self._parts = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self.size = len(self._parts)

    def content(self) -> Content:
        return Content(self.round, self._info, self._parts)


@dataclass(frozen=True)
class ExpectedAverage:
    """What an honest donor's average looks like."""

    after: str
    check_part: Callable[[bytes], object]

    @property
    def request(self) -> Request:
        return Request(what="average", after=self.after)

    def accept(self, header: Header) -> None:
        """Raises ValueError if it is not the average that was asked for."""
        info = AverageInfo.parse(decode(header.metadata))
        if (info.after, info.round) != (self.after, header.version) or sum(info.lengths) != header.total:
            raise ValueError("it is not the average that was asked for")
        if max(info.lengths, default=0) > MAX_PART_BYTES:
            raise ValueError("it has a part that is larger than any")

    def check(self, header: Header, content: memoryview) -> None:
        """Raises ValueError if its parts cannot be read."""
        for part in RecentAverage.read(header.metadata, content).parts:
            self.check_part(part)


def _cut(content: memoryview, lengths: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for length in lengths:
        yield bytes(content[start : start + length])
        start += length


def snapshot(metadata: dict[str, Any], flat: torch.Tensor) -> Content:
    """A packed state as it travels."""
    info = StateInfo.parse(metadata["info"])
    return Content(version_of(info), MSGPackSerializer.dumps(metadata), flat.numpy().data)
