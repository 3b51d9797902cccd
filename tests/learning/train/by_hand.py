"""Microbatches whose gradients a test says, instead of computing them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.flat_model import FlatModel

CPU = torch.device("cpu")


def model_of(*parameters: nn.Parameter) -> FlatModel:
    """A model that has these."""
    return FlatModel(nn.ParameterList(parameters), CPU)


def give(
    replica: FlatModel,
    value: float | Tensor | Sequence[Tensor] = 0.0,
    samples: int = 1,
    loss: float = 1.0,
    weight: float | None = None,
    step: int = 0,
    work: bytes = b"",
) -> bool:
    """Add a microbatch of so many samples to the replica's sum; is it finite?

    :param value: of each gradient, that of the mean loss; several are those of the parameters
    :param weight: as many as samples if not given
    """
    parameters = list(replica.model.parameters())
    values = value if isinstance(value, Sequence) else [value] * len(parameters)
    for parameter, each in zip(parameters, values, strict=True):
        assert parameter.grad is not None
        parameter.grad.copy_(torch.as_tensor(each).broadcast_to(parameter.shape))
    mean = torch.tensor(loss, device=replica.device)
    added = replica.gradients.add(Loss.of(mean, samples if weight is None else weight), samples, step, work)
    return replica.gradients.outcome(added)[1]
