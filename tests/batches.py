"""Batches of any task, for tests that compute with them."""

from collections.abc import Callable, Iterator
from typing import Any

from dedloc_kit.learning.task import Batch
from dedloc_kit.learning.tasks.batches import ORIGIN, batches_of


def batches_from(task: Any, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
    """Of the data of the task's run, from the beginning of the order that a seed decides; without their names."""
    if (own := task.batches(microbatch, seed, warn)) is not None:
        made: Iterator[Batch] = own
        return made
    found = batches_of(task.run, task, microbatch, seed, warn)
    return ({name: values for name, values in batch.items() if name != ORIGIN} for batch in found)
