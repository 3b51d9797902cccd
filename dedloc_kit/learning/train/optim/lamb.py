"""LAMB, the optimizer for large batches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import Scratch
from dedloc_kit.learning.train.optim.layerwise import LayerwiseOptimizer, blockwise_norm

_scratch = Scratch()
"""Of all: a host of experts has as many of these optimizers."""


class Lamb(LayerwiseOptimizer):
    """LAMB: You et al. 2020, "Large Batch Optimization for Deep Learning" (arXiv 1904.00962), Algorithm 2.

    With g the gradient of x, t the number of updates so far and phi(z) = min(z, max_weight_norm):

        m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g²
        r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
        x = x - lr * phi(|x|) / |r + weight_decay x| * (r + weight_decay x)

    The ratio of the norms is 1 where either of them is 0. |.| is the norm over one parameter tensor.

    Build it when the model is already on its device. Per parameter its state is `step` (a float32 scalar), `exp_avg`
    (m) and `exp_avg_sq` (v), both float32 and of the parameter's shape.

    On the CPU the same state and gradients lead to the same bits whatever the number of threads.
    """

    kept: tuple[str, ...] = ("step", "exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        max_weight_norm: float = 10_000.0,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm
        )

    def _first_state(self, param: Tensor) -> dict[str, Tensor]:
        return {
            "step": torch.zeros((), dtype=torch.float32, device=param.device),
            "exp_avg": torch.zeros_like(param, dtype=torch.float32),
            "exp_avg_sq": torch.zeros_like(param, dtype=torch.float32),
        }

    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        # For r + weight_decay x of the largest parameter, or of several small ones.
        largest = max(param.numel() for param in params)
        room = _scratch.of(largest, params[0].device)
        for some in _that_fit(params, largest):
            self._update_some(some, group, room)

    def _update_some(self, params: list[Tensor], group: dict[str, Any], room: Tensor) -> None:
        beta1, beta2 = group["betas"]
        states = [self.state[param] for param in params]
        sizes = [param.numel() for param in params]
        rooms = room[: sum(sizes)].split(sizes)
        updates = [update.view(param.shape) for update, param in zip(rooms, params, strict=True)]
        torch._foreach_add_([state["step"] for state in states], 1.0)
        for param, update in zip(params, updates, strict=True):
            torch.mul(param.float(), group["weight_decay"], out=update)
        # Adam's kernel goes through the memory once and does all of m, v and r, which at rate 1 it adds to `updates`.
        torch._fused_adam_(
            updates,
            [param.grad.float() for param in params if param.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            lr=1.0,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=True,
        )
        ratios = _trust_ratios(params, updates, group["max_weight_norm"])
        for param, update, ratio in zip(params, updates, ratios, strict=True):
            param.addcmul_(update, ratio, value=-group["lr"])


def _that_fit(params: Iterable[Tensor], room: int) -> Iterator[list[Tensor]]:
    """The parameters in groups of at most so many numbers; none alone has more."""
    some: list[Tensor] = []
    left = room
    for param in params:
        if param.numel() > left:
            yield some
            some, left = [], room
        some.append(param)
        left -= param.numel()
    yield some


def _trust_ratios(params: Sequence[Tensor], updates: Sequence[Tensor], max_weight_norm: float) -> list[Tensor]:
    """phi(|x|) / |update| of each parameter as a float32 scalar; it stays on the device, so nothing waits for it."""
    weight_norms = torch.stack([blockwise_norm(param) for param in params])
    update_norms = torch.stack([blockwise_norm(update) for update in updates])
    ratios = weight_norms.clamp(max=max_weight_norm) / update_norms
    usable = (weight_norms > 0) & (update_norms > 0)
    return list(torch.where(usable, ratios, 1.0).float().unbind())
