"""AdamW with a state that other peers can take over before the first step."""

from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.eager import Eager


class AdamW(Eager, torch.optim.AdamW):
    """torch's AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101), by its fused kernel, on the CPU too.

    The state exists from the construction on: per parameter `step` (a float32 scalar), `exp_avg` and `exp_avg_sq`, both
    of the parameter's shape. On the CPU the same state and gradients lead to the same bits whatever the number of
    threads, with AVX2 and with AVX-512. A processor without either rounds differently (3e-8 of the parameters' norm
    after ten steps, far below what `state.sketch.TOLERANCE` allows); so it does in torch's other ways to compute the
    same, which take six to nine times as long.
    """

    kept = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param] = {
                    "step": torch.zeros((), dtype=torch.float32, device=param.device),
                    "exp_avg": torch.zeros_like(param),
                    "exp_avg_sq": torch.zeros_like(param),
                }

    # Without the decorator that imports the compiler; see Eager.
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
