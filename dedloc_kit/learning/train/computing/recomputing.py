"""The gradient of a microbatch that somebody has computed with parameters of before, computed again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dedloc_kit.learning.train.computing.compute import Batch, Compute, as_it_is
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.state.state import Replica, TrainingState

_TRIALS = 2
"""A gradient that overflows because of float16 does not do so twice."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Wanted:
    """What is to be computed."""

    batch: Batch
    parameters: Tensor
    """float32 [layout.size]. They are taken while it is computed, and are there again afterwards."""
    step: int
    """Whose parameters these are."""
    begin: int
    end: int
    """The values of the flat gradient that are wanted."""


class Part(NamedTuple):
    """Part of a gradient."""

    values: Tensor
    """float32 [end - begin] on the CPU."""
    norm: float
    """Of the whole gradient."""


Again = Callable[[Wanted], Part | None]
"""Computes it; None if it does not fit into the memory, or is not finite."""


def recompute(replica: Replica, compute: Compute, wanted: Wanted) -> Part | None:
    """Compute it on a replica, which holds no gradients, as `Again`; it is left as it was."""
    with replica.holding(wanted.parameters, wanted.step):
        try:
            for _ in range(_TRIALS):
                if compute.gradients(wanted.batch) is None:
                    return None
                if not compute.rescaled:
                    return _part(list(replica.model.parameters()), replica.layout, wanted)
            return None
        finally:
            compute.clear()


def on_cpu(
    state: TrainingState,
    loss: Callable[[nn.Module, Batch, int], Tensor],
    prepare: Callable[[Batch], Batch] = as_it_is,
) -> Again:
    """For who has no replica: computes it in float32, on a copy of the model that is made for it."""

    def compute(wanted: Wanted) -> Part | None:
        with state.lock:
            replica = Replica(state, _CPU)
        here = Compute(replica.model, lambda model, batch: loss(model, batch, replica.step), _CPU, None, prepare)
        return recompute(replica, here, wanted)

    return compute


def _part(parameters: list[nn.Parameter], layout: FlatLayout, wanted: Wanted) -> Part | None:
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    if not norm.isfinite():
        return None
    return Part(layout.part(gradients, wanted.begin, wanted.end), float(norm))
