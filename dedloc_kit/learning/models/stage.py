"""A stage of a decoder that is trained on packed documents: see `dedloc_kit.learning.task.StageTask`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dedloc_kit.blocks.architecture import Layout, skeleton
from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.models.parts import Cut
from dedloc_kit.learning.task import Batch, ParamGroup

Loss = Callable[[nn.Module, nn.Linear, Tensor, Tensor], Tensor]
"""Of a model with a configuration, its output layer, what that gets [rows, length, width] and labels."""
Groups = Callable[[nn.Module], list[ParamGroup]]


class DecoderStage:
    """One part of a cut decoder as a task.

    :param length: tokens in a sample, at most
    :param unlabelled: whether a token may be one of which nothing is told
    """

    def __init__(self, cut: Cut, number: int, length: int, unlabelled: bool, groups: Groups, loss: Loss) -> None:
        self.number, self.count = number, len(cut.layers)
        self.width: int = cut.config.hidden_size
        self.first, self.last = number == 0, number == self.count - 1
        self.takes = ("input_ids",) * self.first + ("position_ids",) + ("labels",) * self.last
        self._cut, self._length, self._unlabelled = cut, length, unlabelled
        self._groups, self._loss = groups, loss
        costs = _costs(cut, length)
        self.share = costs[number] / sum(costs)

    def model(self) -> nn.Module:
        return self._cut.build(self.number)

    def outline(self) -> nn.Module:
        return self._cut.outline(self.number)

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        return self._groups(model)

    def check(self, batch: Batch) -> None:
        if batch.keys() != set(self.takes):
            raise ValueError(f"a batch of {sorted(batch)} where {sorted(self.takes)} is right")
        shape = batch["position_ids"].shape
        if len(shape) != 2 or not shape[0] or not 1 <= shape[1] <= self._length:
            raise ValueError(f"samples of the shape {tuple(shape)}, of at most {self._length} tokens")
        for name, values in batch.items():
            if values.dtype != torch.int64 or values.shape != shape:
                raise ValueError(f"{name} is {values.dtype} of the shape {tuple(values.shape)}")
        _within("position_ids", batch["position_ids"], shape[1])
        if self.first:
            _within("input_ids", batch["input_ids"], self._cut.config.vocab_size)
        if self.last:
            labels = batch["labels"]
            told = labels[labels != IGNORED] if self._unlabelled else labels
            if not len(told):
                raise ValueError("no token has a label")
            _within("labels", told, self._cut.config.vocab_size)

    def forward(self, model: nn.Module, hidden: Tensor | None, batch: Batch) -> Tensor:
        part: Any = model
        after: Tensor = part(batch["input_ids"] if self.first else hidden, batch["position_ids"])
        return self._loss(part, part.output, after, batch["labels"]) if self.last else after


def _costs(cut: Cut, length: int) -> list[float]:
    """Of each stage, in multiplications a token: matrices, attention over a whole sample, the output."""
    model, width = skeleton(cut.config), cut.config.hidden_size
    each = [
        sum(weight.numel() for weight in layer.parameters() if weight.ndim > 1) + 2 * length * width
        for layer in model.base_model.get_submodule(Layout.of(model).path)
    ]
    costs = [float(sum(each[slice(*cut.bounds(number))])) for number in range(len(cut.layers))]
    costs[-1] += cut.config.vocab_size * width
    return costs


def _within(name: str, values: Tensor, limit: int) -> None:
    if values.min() < 0 or values.max() >= limit:
        raise ValueError(f"{name} from {int(values.min())} to {int(values.max())}, of {limit}")
