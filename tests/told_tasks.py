"""The real tasks of text, whose volunteers begin together and may be slow; not in tiny.py, which imports at once."""

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.learning.tasks.encoder import Encoder
from tests.tiny import wait_for_start


def _pause() -> None:
    time.sleep(float(os.environ.get("TINY_PAUSE", "0")))


class ToldCausal(Causal):
    def batches_of(self, items: Iterable[Any], microbatch: int, seed: int) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        yield from super().batches_of(items, microbatch, seed)

    def loss(self, model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        _pause()
        return super().loss(model, batch, step)


class ToldEncoder(Encoder):
    def batches_of(self, items: Iterable[Any], microbatch: int, seed: int) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        yield from super().batches_of(items, microbatch, seed)

    def loss(self, model: nn.Module, batch: dict[str, Tensor], step: int) -> Loss:
        _pause()
        return super().loss(model, batch, step)


TASKS = {"told-causal": ToldCausal, "told-encoder": ToldEncoder}
