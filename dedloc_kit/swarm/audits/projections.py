"""Is a contribution the gradient of the work that it names? Compared by a few numbers, which add up.

A projection is the sum of a chunk's values with signs by chance. The mean square of many is the square of the chunk's
norm, and so it is with the projections of a difference. They are linear: those of a contribution are the weighted sum
of those of its microbatches, so several peers can recompute a part each. The signs follow from a seed that nobody knew
when the contribution was committed to; else a lie could be chosen that all of them are blind to.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PROJECTIONS = 32
"""The norm that they tell is off by an eighth, as the standard deviation goes."""
_AT_ONCE = 2**13
"""Values whose signs are in the memory at once."""

Projections = NDArray[np.float64]
"""[PROJECTIONS]"""


def project(values: Tensor, seed: bytes) -> Projections:
    """The projections of a chunk, float32 [numel]. Raises ValueError for any other tensor or one that is not finite."""
    if values.dtype != torch.float32 or values.ndim != 1 or not torch.isfinite(values).all():
        raise ValueError(f"a chunk is a finite float32 vector, not {values.dtype} of shape {tuple(values.shape)}")
    found = np.zeros(PROJECTIONS)
    numbers = values.detach().cpu().numpy().astype(np.float64)
    for begin in range(0, len(numbers), _AT_ONCE):
        part = numbers[begin : begin + _AT_ONCE]
        bits = hashlib.shake_256(seed + begin.to_bytes(8, "big")).digest(_AT_ONCE * PROJECTIONS // 8)
        ones = np.unpackbits(np.frombuffer(bits, np.uint8)).reshape(PROJECTIONS, _AT_ONCE)[:, : len(part)]
        found += 2.0 * (ones @ part) - part.sum()
    return found


def implied(sent: Tensor, before: Tensor, after: Tensor, weight: float) -> Tensor:
    """The gradient that a member has compressed, float32 [numel], from what it sent and what it keeps of it.

    :param sent: decoded
    :param before: its residual before the round, and `after` it, as `Feedback` keeps them: times the weight
    :param weight: samples that the gradient stands for; raises ValueError if that is not positive
    """
    if not 0.0 < weight < float("inf"):
        raise ValueError(f"a weight of {weight}")
    return sent + (after - before) / weight


def compressed_honestly(sent: Tensor, after: Tensor, weight: float, coded: Callable[[Tensor], Tensor]) -> bool:
    """Is the residual what the codec has lost, and not what a lie needs to look like a gradient?

    What was encoded is `sent + after / weight`, so encoding that again must lead to the same; where a value lay between
    two codes rounding may decide otherwise. Of a small chunk one such value is much. So the two that are off most may
    be off by a step between two codes: so little harms nobody.

    :param coded: encodes and decodes a chunk, float32 [numel]
    """
    try:
        again = coded(sent + after / weight)
    except ValueError:  # no codec takes what is not finite
        return False
    off = (again - sent).abs().double()  # float32 does not hold the norm of the largest numbers that may be sent
    few = off.sort().values[:-_BETWEEN_CODES]
    steps = off.max() <= _STEP * again.abs().max()
    return bool(steps and torch.linalg.vector_norm(few) <= _RECODED * torch.linalg.vector_norm(sent.double()))


_RECODED = 0.01
"""Of the norm. Only a few values in ten millions lie so near between two codes."""
_BETWEEN_CODES = 2
_STEP = 0.25
"""Of the largest value: the widest step of any codec (that of 4 bits, from 90 to 119)."""

HONEST = 0.018
"""The largest `difference` that was found between two honest ways to compute: of ALBERT (2 to 6 layers of 64 to 256)
and a decoder (3 of 128) on Bengali text, new and after 30 to 50 steps, on a CPU, with 1 and 4 threads, in float32,
float16 and bfloat16, all chunks, one microbatch and several. Threads alone made 4e-8 in float32 and 1 % in bfloat16,
float16 0.2 %, bfloat16 1.8 %. On an H200 ALBERT-large and a decoder 768 wide were off by 4e-6, 0.2 % and 2.1 % in 32
parts, by 3.3 % in 128."""
TOLERANCE = 3 * HONEST
"""What is taken for honest."""
_LEAST = 0.001
"""Of the whole gradient's norm: so large the gradient of a chunk is taken to be at least. Where it vanishes (that of
queries and keys of an attention that sees no differences was 2e-7) what is left of it is rounding: bfloat16 was off by
several times its norm there, and by 1e-5 of the whole. So much can be sent there undetected."""


@dataclass(frozen=True, eq=False)
class Recomputed:
    """What one finds who recomputes a microbatch. Raises ValueError for what cannot be."""

    weight: float
    """Of what its loss is the mean."""
    projections: Projections
    """Of the chunk that is compared."""
    norm: float
    """Of the whole gradient."""

    def __post_init__(self) -> None:
        fits = self.projections.shape == (PROJECTIONS,) and np.isfinite(self.projections).all()
        if not 0.0 <= self.weight < float("inf") or not fits or not 0.0 <= self.norm < float("inf"):
            raise ValueError(f"a weight of {self.weight} with a gradient of norm {self.norm}")


def difference(claimed: Projections, work: Sequence[Recomputed]) -> float:
    """How far what a contribution says is from what its microbatches lead to, relative to their gradients.

    Where these nearly cancel out their mean is small and what is rounded is not; so it is relative to the norm of the
    mean, or of what that would be if they pointed in any directions, whichever is larger.

    :param claimed: of the implied gradient, which is the mean over all labels
    :param work: all microbatches that it names; raises ValueError for none
    :return: from 0 on; infinite if what was computed is nothing at all and the claim is not
    """
    if not work:
        raise ValueError("no microbatches")
    weights = np.array([each.weight for each in work], dtype=np.float64)
    shares = weights / (weights.sum() or 1.0)
    parts = shares[:, None] * np.stack([each.projections for each in work])
    mean = parts.sum(axis=0)
    least = _LEAST * float(np.linalg.norm(shares * [each.norm for each in work]))
    norm = max(_norm(mean), float(np.linalg.norm([_norm(part) for part in parts])), least)
    off = _norm(claimed - mean)
    return off / norm if norm else (0.0 if off == 0.0 else float("inf"))


def _norm(projections: Projections) -> float:
    return math.sqrt(np.square(projections).mean())
