"""What one step can do is bounded: no member's part of a chunk counts for more than is usual among the parts.

A part that is longer than usual is made as long as that; its direction stays. What is usual is the mean of the shorter
half of them and one more. Fewer than half of the members cannot make that longer than the mean of the others (with the
median they could be as long as the longest of these), nor make it nothing. Lengths are those of the parts, not of their
distances from each other: who agree among themselves gain nothing by it. Nothing is remembered from round to round, so
whoever has the parts of a chunk can make its average again, to the bit.
"""

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from dedloc_kit.learning.train.optim.portable import Floats, norm


def clipped_mean(parts: Sequence[Tensor], weights: Sequence[int], out: Tensor) -> list[float]:
    """The mean of the parts, each clipped, by their weights; the same bits on every processor.

    :param parts: of each member, float32 [numel] on the CPU, finite, at most `flat.CHUNK` values
    :param weights: samples of each, more than 0; the order of the members matters to the last bit
    :param out: float32 [numel], takes the mean
    :return: by what each part was multiplied, from 0 to 1
    """
    values = [part.numpy() for part in parts]
    scales = shrinkage([_length(part) for part in values], weights)
    total, mean = sum(weights), out.numpy()
    room = np.empty_like(mean)
    mean.fill(0.0)
    for part, weight, scale in zip(values, weights, scales, strict=True):
        np.multiply(part, np.float32(scale * weight / total), out=room)
        np.add(mean, room, out=mean)
    return scales


def shrinkage(lengths: Sequence[float], weights: Sequence[int]) -> list[float]:
    """By what parts of these lengths are multiplied.

    A gradient of few samples is noisy, and so longer than one of many: up to a factor of sqrt(many / few), which a part
    of few is granted beside the parts of many.
    """
    return [_scale(length, _bound(lengths, weights, weight)) for length, weight in zip(lengths, weights, strict=True)]


def _bound(lengths: Sequence[float], weights: Sequence[int], weight: int) -> float:
    """How long a part of this weight may be."""
    alike = [length * math.sqrt(max(1.0, w / weight)) for length, w in zip(lengths, weights, strict=True)]
    # Where most have nothing to say (embeddings of rare words), the smallest of what the others say is the measure.
    shorter = sorted(alike)[: len(alike) // 2 + 1]
    return math.fsum(shorter) / len(shorter) or min(filter(None, alike), default=0.0)


def _scale(length: float, bound: float) -> float:
    if math.isinf(length):  # its squares overflow: no gradient that was computed is so long
        return 0.0
    return 1.0 if length <= bound else bound / length


def _length(values: Floats) -> float:
    with np.errstate(over="ignore"):
        return norm(values)
