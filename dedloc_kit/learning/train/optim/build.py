"""The optimizer that a run's configuration names."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.learning.train.optim.adamw import AdamW
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.lamb8bit import Lamb8Bit
from dedloc_kit.learning.train.optim.lars import Lars
from dedloc_kit.learning.train.optim.muon import Muon
from dedloc_kit.learning.train.schedule import learning_rate


def build_optimizer(config: OptimizerConfig, groups: list[dict[str, Any]]) -> Lamb | Lars | AdamW:
    """The optimizer over a task's parameter groups, at the rate of the first update; `muon` has `local_optimizer`."""
    rate = learning_rate(config, 0)
    match config.name:
        case "lars":
            return Lars(groups, lr=rate, momentum=config.momentum, trust_coefficient=config.trust_coefficient)
        case "adamw":
            return AdamW(groups, lr=rate, betas=config.betas, eps=config.epsilon)
        case _:
            kind = Lamb8Bit if config.state_dtype == "8bit" else Lamb
            return kind(groups, lr=rate, betas=config.betas, eps=config.epsilon, max_weight_norm=config.max_weight_norm)


def local_optimizer(
    config: OptimizerConfig, groups: list[dict[str, Any]], model: nn.Module
) -> Lamb | Lars | AdamW | Muon:
    """The same for the steps that a peer takes by itself.

    :param model: whose parameters these are; it tells embeddings from other matrices
    """
    if config.name != "muon":
        return build_optimizer(config, groups)
    return Muon(groups, _tables(model), learning_rate(config, 0), config.momentum, config.betas, config.epsilon)


def _tables(model: nn.Module) -> Iterator[Tensor]:
    """Weights of embeddings and output layers, by the kind of module and not by shape: with as many positions as
    channels a matrix of attention has the shape of an embedding."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            yield module.weight
        output = getattr(module, "get_output_embeddings", None)
        layer = None if output is None else output()
        if layer is not None:
            yield from layer.parameters()
