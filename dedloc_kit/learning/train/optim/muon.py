"""Muon for the matrices of a model, and AdamW for the rest: for the steps that one peer takes by itself."""

from collections.abc import Iterable
from typing import Any

import torch

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.optim.adamw import AdamW


class Muon:
    """torch's Muon (Jordan et al. 2024) for hidden matrices, AdamW for words, biases and all else.

    Muon's steps are made as large as AdamW's (Liu et al. 2025, arXiv 2502.16982, section 2.2), so both take the same
    rate and weight decay. It computes in bfloat16: no two kinds of device give the same, so nothing of it is shared.

    :param tables: weights of embeddings and output layers, which are no hidden matrices
    Raises UserError if torch is too old to have it.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        tables: Iterable[torch.Tensor],
        lr: float,
        momentum: float,
        betas: tuple[float, float],
        eps: float,
    ) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise UserError(
                f"this run trains with Muon, which PyTorch has from 2.9 on, and here is {torch.__version__}; "
                "give: pip install --upgrade 'torch>=2.9'"
            )
        not_hidden = set(tables)  # a tensor is equal in a set to itself alone
        hidden: list[dict[str, Any]] = []
        others: list[dict[str, Any]] = []
        for group in groups:
            matrices = [param for param in group["params"] if param.ndim == 2 and param not in not_hidden]
            rest = [param for param in group["params"] if param.ndim != 2 or param in not_hidden]
            hidden += [{**group, "params": matrices}] if matrices else []
            others += [{**group, "params": rest}] if rest else []
        self._parts: list[torch.optim.Optimizer] = []
        if hidden:
            self._parts.append(torch.optim.Muon(hidden, lr=lr, momentum=momentum, adjust_lr_fn="match_rms_adamw"))
        if others:
            self._parts.append(AdamW(others, lr=lr, betas=betas, eps=eps))

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of both; a rate that is set in them holds from the next step on."""
        return [group for part in self._parts for group in part.param_groups]

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        for part in self._parts:
            part.step()
