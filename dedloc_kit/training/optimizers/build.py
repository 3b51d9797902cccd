"""The optimizer that a run's configuration names."""

from typing import Any

from torch import nn

from dedloc_kit.run.optimizer import OptimizerConfig
from dedloc_kit.training.optimizers.adamw import AdamW
from dedloc_kit.training.optimizers.lamb import Lamb
from dedloc_kit.training.optimizers.lamb8bit import Lamb8Bit
from dedloc_kit.training.optimizers.lars import Lars
from dedloc_kit.training.optimizers.muon import Muon
from dedloc_kit.training.schedule import learning_rate


def build_optimizer(config: OptimizerConfig, groups: list[dict[str, Any]]) -> Lamb | Lamb8Bit | Lars | AdamW:
    """The optimizer over a task's parameter groups, at the rate of the first update; `muon` has `local_optimizer`."""
    rate = learning_rate(config, 0)
    match config.name:
        case "lars":
            return Lars(groups, lr=rate, momentum=config.momentum, trust_coefficient=config.trust_coefficient)
        case "adamw":
            return AdamW(groups, lr=rate, betas=config.betas, eps=config.epsilon)
        case _:
            kind = Lamb8Bit if config.state == "8bit" else Lamb
            return kind(groups, lr=rate, betas=config.betas, eps=config.epsilon, max_weight_norm=config.max_weight_norm)


def local_optimizer(
    config: OptimizerConfig, groups: list[dict[str, Any]], model: nn.Module
) -> Lamb | Lamb8Bit | Lars | AdamW | Muon:
    """The same for the steps that a peer takes by itself.

    :param model: whose parameters these are; it tells embeddings from other matrices
    """
    if config.name != "muon":
        return build_optimizer(config, groups)
    tables = (module.weight.shape for module in model.modules() if isinstance(module, nn.Embedding))
    return Muon(groups, tables, learning_rate(config, 0), config.momentum, config.betas, config.epsilon)
