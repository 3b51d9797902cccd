"""Dynamic loss scaling for float16, so that small gradients do not underflow."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

FIRST, GROWTH = 2.0**16, 2000
"""The first scale, and after how many microbatches without an overflow twice as much is tried (Micikevicius et al.
2017, arXiv 1710.03740, section 3.2)."""

_loss_scale: ContextVar[float] = ContextVar("loss_scale", default=1.0)


@contextmanager
def loss_scaled(scale: float) -> Iterator[None]:
    """What this thread computes meanwhile leads to a loss that is multiplied by this before it goes backward."""
    token = _loss_scale.set(scale)
    try:
        yield
    finally:
        _loss_scale.reset(token)


def loss_scale() -> float:
    """What whoever sends gradients elsewhere has to divide them by; to be asked in the forward pass."""
    return _loss_scale.get()


class LossScale:
    """The scale of one device, adapted to what became of its microbatches; 1 for all types but float16.

    Microbatches that are launched before the outcome of an earlier one is known have its scale: if they overflow too,
    they do not lower it again.
    """

    def __init__(self, half: torch.dtype | None) -> None:
        self._adapts = half is torch.float16
        self._in_a_row = 0
        self.value = FIRST if self._adapts else 1.0

    def learn(self, scale: float, loss: float, finite: bool) -> bool:
        """Take the outcome of a microbatch with this scale. Returns whether the scale is to blame if it is not finite:
        then the next ones will be; gradients that overflow without any scale are a fault.
        """
        if not self._adapts:
            return False
        if finite:
            self._in_a_row += 1
            if self._in_a_row == GROWTH:
                self._in_a_row, self.value = 0, 2.0 * self.value
            return False
        self._in_a_row = 0
        if not math.isfinite(loss):
            return False
        self.value = min(self.value, max(1.0, scale / 2.0))
        return scale > 1.0
