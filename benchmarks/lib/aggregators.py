"""What others make of the members' gradients, to compare ours with: reducers as the package's own."""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dedloc_kit.swarm.averaging.reducer import Reducer


class Gathered(Reducer):
    """Works on all parts at once."""

    def __init__(self, room: Sequence[Tensor]) -> None:
        super().__init__(room)
        self._kept: list[dict[str, Tensor]] = [{} for _ in room]

    def add(self, sender: str, part: int, values: Tensor, weight: float) -> None:
        self._kept[part][sender] = values.clone()
        self.reduce_if_complete(part)

    def reduce_if_complete(self, part: int) -> None:
        kept = self._kept[part]
        if self.weights and kept.keys() == self.weights.keys():
            weights = torch.tensor([self.weights[sender] for sender in kept])
            self.finish(part, self.reduce(torch.stack(list(kept.values())), weights / weights.sum()))

    @abstractmethod
    def reduce(self, rows: Tensor, weights: Tensor) -> Tensor:
        """:param rows: float32 [members, numel]
        :param weights: float32 [members], which add up to 1
        """


class CenteredClip(Gathered):
    """Clips around the result, again and again, at the median distance (Karimireddy et al. 2021, arXiv 2012.10333)."""

    def reduce(self, rows: Tensor, weights: Tensor) -> Tensor:
        center = torch.zeros(rows.shape[1])
        for _ in range(20):
            differences = rows - center
            lengths = differences.norm(dim=1)
            scales = (lengths.median() / lengths.clamp(min=1e-12)).clamp(max=1.0)
            center = center + (weights * scales) @ differences
        return center


class Median(Gathered):
    """Of each value the median over the members, whatever their weights (Yin et al. 2018, arXiv 1803.01498)."""

    def reduce(self, rows: Tensor, weights: Tensor) -> Tensor:
        return rows.median(dim=0).values
