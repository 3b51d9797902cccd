"""A tiny task whose batches tell which data they are of."""

from collections.abc import Callable, Iterator

import torch

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.task import Batch
from tests.tiny import TinyTask


class Naming(TinyTask):
    """Its batches tell of which data they are, and how many came before; nothing is read."""

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self._named = [float(source.dataset.rpartition("/")[2]) for source in run.data.train]

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
        for number in range(100):
            yield {"x": torch.tensor([*self._named, float(number)]).expand(microbatch, -1)}


TASKS = {"tiny": Naming}
