"""The loss of a model on data to train on, for a run that holds none out."""

from collections.abc import Callable
from itertools import islice

import torch

from dedloc_kit.tasks import Task

SAMPLES, BATCHES = 8, 4


@torch.no_grad()
def training_loss(task: Task, model: torch.nn.Module, seed: int, warn: Callable[[str], None]) -> float:
    """The mean loss over a few batches, the same for one seed; what changes in the course of a run is as at its start.

    Raises UserError if the data cannot be read.
    """
    device = next(model.parameters()).device
    losses = [
        float(task.loss(model, {name: values.to(device) for name, values in batch.items()}, 0))
        for batch in islice(task.batches(SAMPLES, seed, warn), BATCHES)
    ]
    return sum(losses) / len(losses)
