"""Hidden states, and their gradients, in little more than half of float16's bytes.

A few channels of hidden states are a hundred times as large as the rest: the four largest travel as they are, all
others as 8-bit integers in blocks of 32 that share a scale. With SmolLM2-135M through two such borders a soft prompt's
gradient is off by 1 to 2 % and the loss by at most 0.2 %; with bfloat16 by 0.4 % and 0.04 %.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad as padded

BLOCK = 32
KEPT = 4
"""Channels that travel as they are."""
MAX_CHANNELS = 2**16
_LEVELS = 127
_SMALLEST = torch.finfo(torch.float32).tiny


def size(shape: Sequence[int]) -> int:
    """How many bytes a tensor of this shape is packed in; raises ValueError for one that cannot be."""
    if not 0 < shape[-1] <= MAX_CHANNELS:
        raise ValueError(f"a tensor of {shape[-1]} channels cannot be packed")
    return sum(_sizes(shape))


def pack(tensor: Tensor) -> bytes:
    """:param tensor: [..., channels], on the CPU; raises ValueError if a number is not finite"""
    if not tensor.numel():
        return bytes(size(tensor.shape))
    rows = tensor.detach().reshape(-1, tensor.shape[-1]).float()
    largest = rows.abs().amax(0)
    if not largest.isfinite().all():
        raise ValueError("numbers that are not finite cannot be packed")
    channels = largest.topk(min(KEPT, rows.shape[1])).indices
    rest = padded(rows, (0, -rows.shape[1] % BLOCK)).clone().index_fill_(1, channels, 0.0).view(-1, BLOCK)
    scales = _up_to_bfloat16((rest.abs().amax(1, keepdim=True) / _LEVELS).clamp_(min=_SMALLEST))
    codes = rest.div_(scales.float()).round_().to(torch.int8)
    pieces = channels.to(torch.uint16), rows[:, channels].contiguous(), scales, codes
    return b"".join(piece.view(-1).view(torch.uint8).numpy().tobytes() for piece in pieces)


def unpack(content: bytes, shape: Sequence[int]) -> Tensor:
    """What `pack` packed, in float32; raises ValueError if it is no tensor of this shape, or one is not finite."""
    if len(content) != size(shape):
        raise ValueError(f"{len(content)} bytes are no packed tensor of the shape {tuple(shape)}")
    if not math.prod(shape[:-1]):
        return torch.zeros(tuple(shape))
    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    channels, kept, scales, codes = (
        piece.clone().view(dtype)  # a piece may begin where its type may not
        for piece, dtype in zip(
            raw.split(_sizes(shape)), (torch.uint16, torch.float32, torch.bfloat16, torch.int8), strict=True
        )
    )
    at = channels.long()
    if at.max() >= shape[-1]:
        raise ValueError(f"channel {int(at.max())} is kept, of {shape[-1]}")
    rows: Tensor = (
        codes.float().view(-1, BLOCK).mul_(scales.float()[:, None]).view(math.prod(shape[:-1]), -1)[:, : shape[-1]]
    )
    rows[:, at] = kept.view(len(rows), -1)
    if not rows.abs().amax().isfinite():
        raise ValueError("a packed tensor holds numbers that are not finite")
    return rows.reshape(tuple(shape))


def _sizes(shape: Sequence[int]) -> list[int]:
    """In bytes: which channels are kept, their numbers, scales, codes."""
    rows, channels = math.prod(shape[:-1]), shape[-1]
    kept, blocks = min(KEPT, channels), -(-channels // BLOCK)
    return [2 * kept, 4 * kept * rows, 2 * blocks * rows, BLOCK * blocks * rows]


def _up_to_bfloat16(values: Tensor) -> Tensor:
    """Rounded up, so that nothing is larger than its block's scale says; float16 has no numbers as small as some
    gradients."""
    bits = (values.view(torch.int32) + 0xFFFF) >> 16 << 16
    return bits.view(torch.float32).bfloat16()
