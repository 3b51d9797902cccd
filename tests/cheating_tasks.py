"""Tasks of who wants to harm a run: they climb where others go down, also where they are to check others."""

from torch import Tensor, nn

from dedloc_kit.tasks import Batch
from dedloc_kit.tasks.causal import Causal


class Climbs(Causal):
    def loss(self, model: nn.Module, batch: Batch, step: int) -> Tensor:
        return -super().loss(model, batch, step)


TASKS = {"causal": Climbs}
