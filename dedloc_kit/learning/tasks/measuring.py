"""What is measured: the loss on data to train on, for a run that holds none out, and a hash of what one holds out."""

import hashlib
from collections.abc import Callable, Iterable
from itertools import islice

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Batch, Task, prepared
from dedloc_kit.learning.tasks.batches import batches_of

SAMPLES, BATCHES = 8, 4


@torch.no_grad()
def training_loss(run: RunConfig, task: Task, model: torch.nn.Module, seed: int, warn: Callable[[str], None]) -> float:
    """The mean loss over a few batches, the same for one seed; what changes in the course of a run is as at its start.

    Raises UserError if the data cannot be read.
    """
    device = next(model.parameters()).device
    losses = [
        task.loss(model, prepared(task, batch, device), 0)
        for batch in islice(batches_of(run, task, SAMPLES, seed, warn), BATCHES)
    ]
    total, weight = (float(sum(each)) for each in zip(*losses, strict=True))
    return total / weight


def hash_of(batches: Iterable[Batch]) -> str:
    """Of what an evaluation measures: SHA-256 of the tensors, by their names, in order."""
    whole = hashlib.sha256()
    for batch in batches:
        for name in sorted(batch):
            values = batch[name].detach().cpu().contiguous()
            whole.update(f"{name} {values.dtype} {tuple(values.shape)} ".encode())
            whole.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()
