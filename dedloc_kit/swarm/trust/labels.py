"""How much the gradient of each member counts in an average."""

from collections.abc import Sequence
from statistics import median_low
from typing import NamedTuple

MOST_LABELS = 8
"""So many times the usual number of labels may stand in a sample of one member."""


class Brought(NamedTuple):
    """By one member. :ivar labels: what its gradient is over, in `LABEL`ths; :ivar counted: samples that count"""

    samples: int
    labels: int
    counted: int


def gradient_weights(members: Sequence[Brought]) -> list[int]:
    """What these gradients are weighed by: what they are over, as far as their samples count.

    So the average is that of one machine with the same samples, however long each is. Nobody's samples have more than
    `MOST_LABELS` times as many labels as is usual: claims of a few change little.
    """
    usual = [each.labels / each.samples for each in members if each.samples and each.labels]
    most = MOST_LABELS * median_low(usual) if usual else 0.0
    return [
        round(min(each.labels, most * each.samples) * each.counted / each.samples) if each.samples else 0
        for each in members
    ]
