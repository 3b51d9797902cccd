"""The gradient of a microbatch that somebody has computed with parameters of before, computed again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dedloc_kit.learning.train.computing.card import Batch, Card, LossFunction, Prepare
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.optim.layerwise import blockwise_norm
from dedloc_kit.learning.train.state.replica import Replica
from dedloc_kit.learning.train.state.state import TrainingState

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
    weight: float
    """What the mean is over whose gradient this is."""


Again = Callable[[Wanted], Part | None]
"""Computes it; None if it does not fit into the memory, or is not finite."""


def recompute(replica: Replica, card: Card, wanted: Wanted) -> Part | None:
    """Compute it on a replica, which holds no gradients, as `Again`; it is left as it was. Waits for the device."""
    with replica.holding(wanted.parameters, wanted.step):
        try:
            for _ in range(_TRIALS):
                computed = card.measure(wanted.batch)
                if computed is None:
                    return None
                if not computed.rescaled:
                    return _part(replica, wanted, computed.weight) if computed.finite else None
            return None
        finally:
            card.clear()


def on_cpu(state: TrainingState, loss: LossFunction, prepare: Prepare = dict) -> Again:
    """For who has no replica: computes it in float32, on a copy of the model that is made for it."""

    def compute(wanted: Wanted) -> Part | None:
        with state.lock:
            replica = Replica(state, _CPU)
        return recompute(replica, Card(replica, loss, prepare=prepare), wanted)

    return compute


def _part(replica: FlatModel, wanted: Wanted, weight: float) -> Part:
    gradient = replica.to_wire(replica.gradients.vector, torch.empty(replica.layout.size))
    return Part(gradient[wanted.begin : wanted.end].clone(), float(blockwise_norm(gradient)), weight)
