"""What others make of the members' gradients, to compare ours with: reducers as the package's own."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dedloc_kit.swarm.allreduce.reduction.reducer import GatheringReducer


class CenteredClip(GatheringReducer):
    """Clips around the result, again and again, at the median distance (Karimireddy et al. 2021, arXiv 2012.10333)."""

    def reduce(self, parts: Sequence[Tensor], weights: Sequence[float], out: Tensor) -> None:
        rows, shares = torch.stack(list(parts)), torch.tensor(weights) / sum(weights)
        out.zero_()
        for _ in range(20):
            differences = rows - out
            lengths = differences.norm(dim=1)
            scales = (lengths.median() / lengths.clamp(min=1e-12)).clamp(max=1.0)
            out += (shares * scales) @ differences


class Median(GatheringReducer):
    """Of each value the median over the members, whatever their weights (Yin et al. 2018, arXiv 1803.01498)."""

    def reduce(self, parts: Sequence[Tensor], weights: Sequence[float], out: Tensor) -> None:
        out.copy_(torch.stack(list(parts)).median(dim=0).values)
