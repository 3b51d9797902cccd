"""The optimizer that a run's configuration names."""

from typing import Any

from dedloc_kit.run import OptimizerConfig
from dedloc_kit.training.lamb import Lamb
from dedloc_kit.training.lars import Lars
from dedloc_kit.training.schedule import learning_rate


def build_optimizer(config: OptimizerConfig, groups: list[dict[str, Any]]) -> Lamb | Lars:
    """The optimizer over a task's parameter groups, at the rate of the first update."""
    rate = learning_rate(config, 0)
    if config.name == "lars":
        return Lars(groups, lr=rate, momentum=config.momentum, trust_coefficient=config.trust_coefficient)
    return Lamb(groups, lr=rate, betas=config.betas, eps=config.epsilon, max_weight_norm=config.max_weight_norm)
