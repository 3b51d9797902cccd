"""A model in training outside of any swarm, whose gradient and weights are at hand as flat vectors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Batch, Task
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.optim.build import local_optimizer
from dedloc_kit.learning.train.schedule import learning_rate


class Learner:
    """A model and its optimizer, as each peer of a run has them."""

    def __init__(self, run: RunConfig, task: Task, state: str = "float32") -> None:
        self.run, self.task, self.model = run, task, task.model()
        self.parameters = list(self.model.parameters())
        self.layout = FlatLayout.of(self.parameters)
        groups = task.groups(self.model)
        # Not in the run, whose first weights and data depend on all that it says.
        self.optimizer = local_optimizer(run.optimizer.model_copy(update={"state_dtype": state}), groups, self.model)
        self.step = 0

    def gradient(self, batch: Batch) -> Tensor:
        """The gradient of a batch's mean loss as a flat vector."""
        return self._flat(
            torch.autograd.grad(self.task.loss(self.model, self.task.prepare(batch), self.step).mean, self.parameters)
        )

    def set_gradient(self, flat: Tensor) -> None:
        for view, parameter in zip(self.layout.views(flat), self.parameters, strict=True):
            parameter.grad = view.clone()

    def update(self, rate: float = 1.0) -> None:
        """Take a step with the parameters' gradients, and clear them."""
        nn.utils.clip_grad_norm_(self.parameters, self.run.optimizer.max_grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * learning_rate(self.run.optimizer, self.step)
        self.optimizer.step()
        self.model.zero_grad()
        self.step += 1

    def weights(self) -> Tensor:
        """The parameters as a flat vector."""
        return self._flat([parameter.detach() for parameter in self.parameters])

    def set_weights(self, weights: Tensor) -> None:
        for view, parameter in zip(self.layout.views(weights), self.parameters, strict=True):
            parameter.data.copy_(view)

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        flat = torch.empty(self.layout.size)
        for view, tensor in zip(self.layout.views(flat), tensors, strict=True):
            view.copy_(tensor)
        return flat
