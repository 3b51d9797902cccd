"""The outer optimizer of local-steps training."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.eager import Eager


class NesterovSGD(Eager, torch.optim.SGD):
    """SGD with Nesterov momentum, as DiLoCo's outer optimizer (Douillard et al. 2023, arXiv 2311.08105, Algorithm 1).

    The "gradient" is the mean of what the peers moved away from the shared parameters. Its state, one momentum tensor
    per parameter, exists from the construction on, so that a peer can load it before its first step.
    """

    kept = ("momentum_buffer",)

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], lr: float, momentum: float) -> None:
        super().__init__(params, lr=lr, momentum=momentum, nesterov=momentum > 0)
        if momentum > 0:
            for group in self.param_groups:
                for param in group["params"]:
                    self.state[param]["momentum_buffer"] = torch.zeros_like(param)
