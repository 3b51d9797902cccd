"""Which way of writing down chunks a run uses, and how any of them is read.

hivemind's own table of codecs takes no part in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hivemind.proto import runtime_pb2
from torch import Tensor

from dedloc_kit.swarm.allreduce.encoding.compression import (
    Blockwise4Bit,
    Blockwise8Bit,
    ChunkCompression,
    Float16,
    Float32,
)
from dedloc_kit.swarm.allreduce.encoding.sparse import Sparse


@dataclass(frozen=True)
class Codec:
    """What a run uses for each kind of chunk; which kind a chunk is, all members know."""

    gradients: ChunkCompression
    """From a member to the reducer."""
    averages: ChunkCompression
    """From the reducer to the members."""
    small: ChunkCompression
    """Every way, for tensors such as biases: few bytes, and much depends on them."""
    means: ChunkCompression
    """From the owners in the rows to the finisher: finer, for what this loses nobody makes good."""


_FLOAT32, _FLOAT16, _8BIT, _4BIT, _SPARSE = Float32(), Float16(), Blockwise8Bit(), Blockwise4Bit(), Sparse()
WAYS: tuple[ChunkCompression, ...] = (_FLOAT32, _FLOAT16, _8BIT, _4BIT, _SPARSE)
_BY_TAG = {way.tag: way for way in WAYS}
_CODECS = {
    "none": Codec(_FLOAT32, _FLOAT32, _FLOAT32, _FLOAT32),
    "float16": Codec(_FLOAT16, _FLOAT16, _FLOAT16, _FLOAT16),
    "8bit": Codec(_8BIT, _8BIT, _FLOAT16, _8BIT),
    "4bit": Codec(_4BIT, _4BIT, _FLOAT16, _8BIT),
    "sparse": Codec(_SPARSE, _4BIT, _FLOAT16, _8BIT),
}


def codec_of(name: str) -> Codec:
    """The codec that a run's configuration names; raises ValueError if there is none of that name."""
    if name not in _CODECS:
        raise ValueError(f"there is no compression '{name}'; choose one of: {', '.join(_CODECS)}")
    return _CODECS[name]


def decode(message: runtime_pb2.Tensor, numel: int, out: Tensor | None = None) -> Tensor:
    """The chunk in a message from anyone: float32 [numel], finite. Raises ValueError if it is anything else.

    `out`, if there is one, takes it; after an error its content is worth nothing.
    """
    return _way_of(message, numel).extract(message, out)


def check(message: runtime_pb2.Tensor, numel: int) -> None:
    """Raises ValueError for what `decode` does, in a fraction of its time."""
    _way_of(message, numel).check(message)


def _way_of(message: runtime_pb2.Tensor, numel: int) -> ChunkCompression:
    if message.dtype not in _BY_TAG:
        raise ValueError(f"a chunk came in the unknown form '{message.dtype[:32]}'")
    if len(message.size) != 1 or message.size[0] != numel:
        raise ValueError(f"a chunk came with the shape {tuple(message.size[:4])} instead of ({numel},)")
    return _BY_TAG[message.dtype]


def decode_all(messages: Sequence[bytes], size: int) -> Tensor:
    """A whole vector, float32 [size], from its parts in order, each as it travelled; raises ValueError, before it takes
    memory, if it has not this size."""
    sizes = [read_part(message).size[0] for message in messages]  # all at a time would be the whole once more
    if min(sizes, default=0) <= 0 or sum(sizes) != size:
        raise ValueError("it has not as many values as the model")
    vector = torch.empty(size)
    for message, own in zip(messages, vector.split(sizes), strict=True):
        decode(read_part(message), len(own), own)
    return vector


def read_part(message: bytes) -> runtime_pb2.Tensor:
    """A chunk as it travelled, still encoded; raises ValueError if it is none."""
    try:
        part = runtime_pb2.Tensor.FromString(message)
    except Exception as error:  # protobuf's own, which have no common base that is typed
        raise ValueError(f"a part cannot be decoded ({error})") from None
    if len(part.size) != 1:
        raise ValueError("a part cannot be decoded (it has more than one size, or none)")
    return part
