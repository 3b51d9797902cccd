"""A few numbers that tell one state from another: what two peers compare instead of the state itself.

Of every tensor some projections on random signs. The difference of two sketches estimates the difference of the
tensors. A digest would not do: unlike processors round differently. Where a state may be forged, the signs are drawn
anew for each question: without them nobody can make another state that fits.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

NUMBERS = 16
"""For each tensor, if nothing else is said. Two values that were changed alike stay unseen by one of them half of the
time."""
BLOCK = 4096
TOLERANCE = 1e-5
"""Relative. Peers take bit-identical steps on like machines; a different processor may round differently, which adds
up to less than this, while a missed or halved step is far more."""
SEED_BYTES = 32
MAX_NUMBERS = 2**20
"""In one sketch: that of a state of 65,000 tensors."""

Sketch = list[list[float]]


def sketch(tensors: Sequence[Tensor], seed: bytes, numbers: int = NUMBERS) -> Sketch:
    """So many projections of each tensor, in one pass.

    The signs within a block of values are the same for all blocks, those of the blocks differ (a tug-of-war sketch,
    Alon, Matias and Szegedy 1996). They come from the seed by SHAKE-256, so that they are the same on every machine.
    """
    largest = max((tensor.numel() for tensor in tensors), default=0)
    inner = _signs(seed + b"inner", BLOCK, numbers)
    outer = _signs(seed + b"outer", largest // BLOCK + 1, numbers).double()
    return [_project(tensor.detach().reshape(-1), inner, outer).tolist() for tensor in tensors]


def differ(mine: Sequence[Tensor], seed: bytes, other: Sketch) -> list[int]:
    """Which of these tensors is not the one that the sketch was made of, by number."""
    if len(other) != len(mine):
        raise ValueError(f"the sketch is of {len(other)} tensors, not {len(mine)}")
    own = sketch(mine, seed)
    return [number for number, pair in enumerate(zip(own, other, strict=True)) if not alike(*pair)]


def alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Are two sketches of one tensor? By the norm of the difference, relative to that of the tensor, as estimated."""
    if len(one) != len(other):
        return False
    return math.dist(one, other) <= TOLERANCE * max(math.hypot(*one), math.hypot(*other)) < math.inf


def read(values: object) -> Sketch:
    """A sketch from a peer's plain values; raises ValueError if it is none."""
    if not isinstance(values, list) or len(values) * NUMBERS > MAX_NUMBERS:
        raise ValueError("it is no sketch")
    for numbers in values:
        if not isinstance(numbers, list) or len(numbers) != NUMBERS or {float} != set(map(type, numbers)):
            raise ValueError("it is no sketch")
    return values


def _project(flat: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    whole = flat.numel() // BLOCK * BLOCK
    rest = flat[whole:].float() @ inner[: flat.numel() - whole]
    blocks = torch.cat([flat[:whole].float().view(-1, BLOCK) @ inner, rest.view(1, -1)]).double()
    return (blocks * outer[: len(blocks)]).sum(0)


def _signs(seed: bytes, rows: int, numbers: int) -> Tensor:
    """1 and -1: [rows, numbers]."""
    drawn = np.frombuffer(hashlib.shake_256(seed).digest(math.ceil(rows * numbers / 8)), dtype=np.uint8)
    bits = np.unpackbits(drawn, count=rows * numbers)
    return torch.from_numpy(bits.reshape(rows, numbers).astype(np.float32)).mul_(2).sub_(1)
