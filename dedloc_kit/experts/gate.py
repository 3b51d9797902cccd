"""Which experts a token goes to: a product-key gate over the cells of a grid (arXiv 2002.04013, section 3.1)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_SPREAD = 0.02
"""Of the first weights, as of the decoders around."""


class Gate(nn.Module):
    """A cell's score is the sum of its row's and its column's.

    :param seed: its first weights follow from it
    """

    def __init__(self, width: int, grid: tuple[int, int], seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.rows, self.columns = (
            nn.Parameter(torch.randn(side, width, generator=generator) * _SPREAD) for side in grid
        )

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of rows and of columns, for float32 [tokens, width]: rounded, they would choose others."""
        with torch.autocast(tokens.device.type, enabled=False):
            return functional.linear(tokens, self.rows), functional.linear(tokens, self.columns)


@dataclass(frozen=True, eq=False)
class Chosen:
    """Where tokens go; each field is [tokens, chosen].

    :ivar cells: numbers of cells, row after row
    :ivar scores: of these
    :ivar there: false where there are fewer cells alive than are to be chosen
    """

    cells: Tensor
    scores: Tensor
    there: Tensor


def choose(rows: Tensor, columns: Tensor, alive: Tensor, count: int) -> Chosen:
    """The best cells for each token among those alive.

    :param alive: bool [rows, columns]
    """
    scores = (rows[:, :, None] + columns[:, None, :]).flatten(1)
    living = alive.flatten()
    scores, cells = scores.masked_fill(~living, -torch.inf).topk(count)
    there = living[cells]
    return Chosen(cells, scores.masked_fill(~there, 0.0), there)


def imbalance(rows: Tensor, columns: Tensor, alive: Tensor, chosen: Chosen) -> Tensor:
    """How unevenly tokens go to rows and to columns, each by itself: 0 where all that are alive are used alike.

    For a dimension of n the sum over i of n * f_i * p_i, less 1, with f_i the share of the choices that fell there and
    p_i the mean of the softmax over its scores (Fedus et al. 2021, arXiv 2101.03961, equation 4): the gradient goes
    through p, and is the larger the more a row or column is used.
    """
    cells = chosen.cells[chosen.there]
    if not len(cells):
        return rows.new_zeros(())
    width = alive.shape[1]
    return _of_dimension(rows, alive.any(1), cells // width) + _of_dimension(columns, alive.any(0), cells % width)


def _of_dimension(scores: Tensor, living: Tensor, used: Tensor) -> Tensor:
    shares = torch.bincount(used, minlength=len(living)) / len(used)
    probabilities = scores.masked_fill(~living, -torch.inf).softmax(1).mean(0)
    return living.sum() * (shares * probabilities).sum() - 1.0
