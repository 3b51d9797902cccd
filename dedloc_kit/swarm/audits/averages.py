"""Is what a reducer has made of a chunk the average of what the members have sent?

What they have sent they have committed to, so anybody to whom they show it can average it again. A reducer adds what
its own compression had lost before, which nobody else knows: so an average may be off by more than rounding now and
then, above all where gradients were much longer before. Whoever is off again and again is no honest reducer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.swarm.trust.robust import clipped_mean

FAR_OFF = 0.5
"""Of the norm of the right average. In 4 bits an honest one is off by 10 to 20 %, what was lost before included."""


def averaged_again(parts: Sequence[Tensor], weights: Sequence[int], trust: TrustConfig) -> Tensor:
    """The average of a chunk, float32 [numel], as a reducer of this run makes it before it is compressed.

    :param parts: of those that count, as they were sent, with as many samples each as count
    """
    average = torch.zeros_like(parts[0])
    if trust.aggregator == "clip":
        clipped_mean(parts, weights, average)
        return average
    for part, weight in zip(parts, weights, strict=True):
        average.add_(part, alpha=weight / sum(weights))
    return average


def is_far_off(made: Tensor, right: Tensor) -> bool:
    """Is what a reducer made, as all decode it, not the right average?"""
    norm = float(torch.linalg.vector_norm(right))
    return norm > 0.0 and not float(torch.linalg.vector_norm(made - right)) <= FAR_OFF * norm
