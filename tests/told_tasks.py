"""The real tasks of text, whose volunteers begin together; apart from tiny.py, which imports in no time."""

from collections.abc import Callable, Iterator

from torch import Tensor

from dedloc_kit.tasks.causal import Causal
from dedloc_kit.tasks.encoder import Encoder
from tests.tiny import wait_for_start


class ToldCausal(Causal):
    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        yield from super().batches(microbatch, seed, warn)


class ToldEncoder(Encoder):
    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[dict[str, Tensor]]:
        wait_for_start()
        yield from super().batches(microbatch, seed, warn)


TASKS = {"told-causal": ToldCausal, "told-encoder": ToldEncoder}
