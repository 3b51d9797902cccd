"""A peer's gradients on their way into a global step."""

import math
import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dedloc_kit.training.accumulator import Doubt, Tally
from dedloc_kit.training.flat import FlatLayout


class Gradients:
    """Accumulates sums of gradients; what is outgoing is the mean of them."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], layout: FlatLayout) -> None:
        # A doubt holds the mean of what was outgoing; None as long as that is all that is outgoing.
        self.tally = Tally[Tensor | None]()
        self._parameters, self._layout = parameters, layout
        self._lock = threading.Lock()
        self._fresh: list[Tensor] = []  # allocated with the first gradient: a follower never has one
        self._spare: list[Tensor] = []  # takes its place while a snapshot is made, so that adding never waits
        self._fresh_step = self._outgoing_step = 0  # the oldest parameters that these were computed with
        self._counted: Doubt[Tensor | None] | None = None  # part of the outgoing mean that has to come out of it again

    def rebase(self, newer: Sequence[Tensor]) -> None:
        for mine, theirs in zip(self._parameters, newer, strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int) -> bool:
        gradients = taken(self._parameters, loss)
        if gradients is None:
            return False
        with self._lock:
            self._fresh = self._fresh or _zeros(self._parameters)
            torch._foreach_add_(self._fresh, gradients, alpha=float(samples))
            self._fresh_step = step if not self.tally.fresh else min(self._fresh_step, step)
            self.tally.add(loss, samples)
        return True

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        with self._lock:
            fresh, self._fresh = self._fresh, self._spare
            before, samples, doubts = self.tally.outgoing, self.tally.fresh, self.tally.doubts.values()
            if samples:
                self._outgoing_step = min(self._outgoing_step, self._fresh_step) if before else self._fresh_step
            self.tally.send()
            total = self.tally.outgoing
        if before and self._counted is not None and self._counted.held is not None:
            flat.mul_((before + self._counted.samples) / before)
            flat.sub_(self._counted.held, alpha=self._counted.samples / before)
        self._counted = None
        if before and samples and any(doubt.held is None for doubt in doubts):
            kept = flat.clone()
            for doubt in doubts:
                doubt.held = kept if doubt.held is None else doubt.held
        if not total:
            flat.zero_()
        if samples:
            for mean, sums in zip(self._layout.views(flat), fresh, strict=True):
                if before:
                    mean.mul_(before / total).add_(sums.cpu(), alpha=1 / total)
                else:
                    torch.mul(sums.cpu(), 1 / total, out=mean)
            torch._foreach_zero_(fresh)
        self._spare = fresh

    def doubt(self, round_id: str) -> None:
        self.tally.doubt(round_id, None)

    def count_outgoing(self) -> None:
        with self._lock:
            self.tally.count()
            self._counted = None

    def settle(self, rounds: Iterable[str]) -> None:
        with self._lock:
            counted = self.tally.settle(rounds)
            if counted is not None:
                self._counted = counted

    def drop_older_than(self, step: int) -> int:
        dropped = 0
        with self._lock:
            if self.tally.outgoing and self._outgoing_step < step:
                dropped += self.tally.outgoing
                self._drop_outgoing()
            if self.tally.fresh and self._fresh_step < step:
                dropped += self.tally.fresh
                self._drop_fresh()
        return dropped

    def forget(self) -> int:
        with self._lock:
            dropped = self.tally.samples
            self._drop_outgoing()
            self._drop_fresh()
        return dropped

    def _drop_outgoing(self) -> None:
        self.tally.drop_outgoing()
        self._counted = None

    def _drop_fresh(self) -> None:
        self.tally.drop_fresh()
        if self._fresh:
            torch._foreach_zero_(self._fresh)


def taken(parameters: Sequence[torch.nn.Parameter], loss: float) -> list[Tensor] | None:
    """The parameters' gradients, which are cleared; none unless the loss and they are finite.

    One number that is not would poison everyone's average. The norms overflow well before the gradients do, so nothing
    that is added can overflow in the average either.
    """
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    finite = math.isfinite(loss) and bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
    return gradients if finite else None


def _zeros(parameters: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    return [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
