"""What the optimizers for large batches have in common: each parameter tensor gets a step by its own norms."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.learning.train.eager import Eager

_BLOCK = 4096


class LayerwiseOptimizer(Eager, torch.optim.Optimizer):
    """An optimizer that updates the parameters which have a gradient, group by group.

    Its state exists from the construction on, so that a peer can load it before its first update.
    """

    def __init__(self, params: Iterable[Tensor] | Iterable[dict[str, Any]], **defaults: Any) -> None:
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters and their state."""
        super().add_param_group(param_group)
        for param in self.param_groups[-1]["params"]:
            self.state[param] = self._first_state(param)

    @abstractmethod
    def _first_state(self, param: Tensor) -> dict[str, Tensor]:
        """Of a parameter before its first update, all zero."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # nobody has a closure
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            if params:
                self._update(params, group)

    @abstractmethod
    def _update(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Update these parameters of a group; each has a gradient."""


def blockwise_norm(tensor: Tensor) -> Tensor:
    """The Euclidean norm as a scalar: float64 on the CPU, float32 on a device, of which not all have float64.

    Over blocks, since one float32 sum over millions of elements is off by 1e-4, and a float64 sum of float32
    elements takes ten times as long. Threads share out whole blocks, so their number does not show in the result.
    On a device the norms of blocks are added up over blocks again.
    """
    flat = tensor.reshape(-1)
    if flat.device.type != "cpu":
        while flat.numel() > _BLOCK:
            flat = _block_norms(flat)
        norm: Tensor = torch.linalg.vector_norm(flat)
    else:
        norm = torch.linalg.vector_norm(_block_norms(flat).double())
    return norm


def _block_norms(flat: Tensor) -> Tensor:
    whole = flat.numel() // _BLOCK * _BLOCK
    block_norms = torch.linalg.vector_norm(flat[:whole].view(-1, _BLOCK), dim=1)
    rest_norm = torch.linalg.vector_norm(flat[whole:]).view(1)
    return torch.cat([block_norms, rest_norm])
