"""What is left of the training state at a peer that only lends its line: where in the run it is, and no parameters."""

from typing import Any

import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.state.orders import begun
from dedloc_kit.learning.train.state.state import Position, TrainingState
from dedloc_kit.records.steps import Receipt


class NoState(TrainingState):
    """The state of a model without parameters, which counts the steps of one that has some.

    :param layout: of that one's
    """

    def __init__(self, layout: FlatLayout, run: RunConfig) -> None:
        super().__init__(torch.nn.Module(), lambda _: _NoOptimizer(), run)
        self.layout = layout

    def apply(self, average: Tensor, receipt: Receipt, decay: int = 0) -> None:
        """The average is not looked at."""
        self.count(receipt, decay)

    def count(self, receipt: Receipt, decay: int) -> None:
        """The others have taken this step.

        :param decay: as for `apply`
        """
        self.decay = self.decay or begun(self.run.optimizer, decay, receipt.step)
        self._count(receipt)

    def move(self, position: Position) -> None:
        """The others are there, and how they got there is not known here."""
        self.step, self.rounds, self.receipts = position.step, (position.round,) if position.round else (), ()

    def _take_sketch(self) -> None:
        self.sketch = ()


class _NoOptimizer:
    param_groups: list[dict[str, Any]] = []  # noqa: RUF012 - nobody changes it

    def step(self) -> None:
        pass

    def state_tensors(self) -> list[Tensor]:
        return []
