"""Is a contribution the gradient of the work that it names? Compared by a few numbers, which add up.

A projection is the sum of a chunk's values with signs by chance. The mean square of many is the square of the chunk's
norm, and so it is with the projections of a difference. They are linear: those of a contribution are the weighted sum
of those of its microbatches, so several peers can recompute a part each. The signs follow from a seed that nobody knew
when the contribution was committed to; else a lie could be chosen that all of them are blind to.
"""

import hashlib
from collections.abc import Callable, Sequence

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
    two codes rounding may decide otherwise.

    :param coded: encodes and decodes a chunk, float32 [numel]
    """
    try:
        again = coded(sent + after / weight)
    except ValueError:  # no codec takes what is not finite
        return False
    return bool(torch.linalg.vector_norm(again - sent) <= _RECODED * torch.linalg.vector_norm(sent))


_RECODED = 0.01
"""Of the norm. Only a few values in a million lie so near between two codes."""

TOLERANCE = 0.05
"""The largest difference that is taken for honest."""


def difference(claimed: Projections, computed: Sequence[Projections], weights: Sequence[float]) -> float:
    """How far what a contribution says is from what its microbatches lead to, relative to their gradients.

    Where these nearly cancel out their mean is small and what is rounded is not; so it is relative to the norm of the
    mean, or of what that would be if they pointed in any directions, whichever is larger.

    :param claimed: of the implied gradient, which is a mean over samples
    :param computed: of each microbatch's gradient, and `weights` its share of the samples
    :return: from 0 on; infinite if what was computed is nothing at all and the claim is not
    """
    shares = np.array(weights, dtype=np.float64)
    if len(shares) != len(computed) or not len(shares) or (shares <= 0).any():
        raise ValueError(f"{len(shares)} weights, all of them positive, for {len(computed)} microbatches")
    parts = (shares / shares.sum())[:, None] * np.stack(computed)
    mean = parts.sum(axis=0)
    norm = max(float(np.square(mean).mean()), float(np.square(parts).mean(axis=1).sum())) ** 0.5
    off = float(np.square(claimed - mean).mean()) ** 0.5
    return off / norm if norm else (0.0 if off == 0.0 else float("inf"))
