"""An expert: a gated feed-forward network (SwiGLU, Shazeer 2020, arXiv 2002.05202), as in the decoders around it."""

import torch
from torch import Tensor, nn
from torch.nn import functional

_SPREAD = 0.02
"""Of the first weights, as transformers draws those of decoders."""


class Network(nn.Module):
    """Takes and gives [tokens, width].

    :param seed: its first weights follow from it
    """

    def __init__(self, width: int, hidden: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def drawn(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns, generator=generator) * _SPREAD)

        self.gate, self.up, self.down = drawn(hidden, width), drawn(hidden, width), drawn(width, hidden)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = functional.silu(functional.linear(inputs, self.gate)) * functional.linear(inputs, self.up)
        return functional.linear(inner, self.down)
