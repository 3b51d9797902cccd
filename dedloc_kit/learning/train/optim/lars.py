"""LARS, the optimizer for large batches of images."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.optim.layerwise import LayerwiseOptimizer, blockwise_norm


class Lars(LayerwiseOptimizer):
    """LARS: You et al. 2017, "Large Batch Training of Convolutional Networks" (arXiv 1708.03888).

    With g the gradient of x and |.| the norm over one parameter tensor:

        v = momentum v + trust_coefficient |x| / (|g| + weight_decay |x|) * (g + weight_decay x)
        x = x - lr v

    The factor before the brackets is 1 where |x| or |g| is 0, so that what starts at zero can leave it. As in SwAV and
    DeDLOC (there called LARC), the rate stands outside the momentum; in the paper's Algorithm 1 it is inside.

    The state is `momentum` (v) of each parameter, float32 and of its shape. On the CPU the same state and gradients
    lead to the same bits whatever the number of threads.
    """

    kept = ("momentum",)

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-6,
        trust_coefficient: float = 0.001,
    ) -> None:
        super().__init__(
            params, lr=lr, momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient
        )

    def _first_state(self, param: Tensor) -> dict[str, Tensor]:
        return {"momentum": torch.zeros_like(param, dtype=torch.float32)}

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        for param in params:
            assert param.grad is not None
            self._update_one(param, param.grad.float(), group)

    def _update_one(self, param: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        decay, momentum = group["weight_decay"], self.state[param]["momentum"]
        weight_norm, gradient_norm = blockwise_norm(param), blockwise_norm(gradient)
        ratio = group["trust_coefficient"] * weight_norm / (gradient_norm + decay * weight_norm)
        # It stays on the device, so nothing waits for it.
        ratio = torch.where((weight_norm > 0) & (gradient_norm > 0), ratio, 1.0).float()
        momentum.mul_(group["momentum"]).addcmul_(gradient.add(param, alpha=decay), ratio)
        param.add_(momentum, alpha=-group["lr"])
