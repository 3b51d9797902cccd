"""The real tasks of text, whose volunteers begin together and may be slow; not in tiny.py, which imports at once."""

import os
import time
from collections.abc import Callable, Iterator

from torch import Tensor

from dedloc_kit.learning.tasks.causal import Causal
from dedloc_kit.learning.tasks.encoder import Encoder
from tests.tiny import wait_for_start


def _told(batches: Iterator[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """All of them, each after a pause."""
    wait_for_start()
    for batch in batches:
        time.sleep(float(os.environ.get("TINY_PAUSE", "0")))
        yield batch


class ToldCausal(Causal):
    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        return _told(super().batches(microbatch, seed, warn))


class ToldEncoder(Encoder):
    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        return _told(super().batches(microbatch, seed, warn))


TASKS = {"told-causal": ToldCausal, "told-encoder": ToldEncoder}
