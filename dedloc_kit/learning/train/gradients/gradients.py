"""A peer's gradients on their way into a global step."""

import math
import threading
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.gradients.accumulator import Doubt, Sums, Tally


class Gradients:
    """Accumulates sums of gradients; what is outgoing is the mean of them.

    :param parameters: of each replica
    """

    def __init__(self, parameters: Sequence[Sequence[torch.nn.Parameter]], layout: FlatLayout) -> None:
        # A doubt holds the mean of what was outgoing; None as long as that is all that is outgoing.
        self.tally = Tally[Tensor | None]()
        self._parameters, self._layout = parameters, layout
        self._lock = threading.Lock()
        self._fresh = [Sums() for _ in parameters]
        self._outgoing_step = 0  # the oldest parameters that these were computed with
        self._counted: Doubt[Tensor | None] | None = None  # part of the outgoing mean that has to come out of it again

    def rebase(self, newer: Sequence[Tensor], replica: int = 0) -> None:
        for mine, theirs in zip(self._parameters[replica], newer, strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int, replica: int = 0, work: bytes = b"") -> bool:
        gradients = taken(self._parameters[replica], loss)
        if gradients is None:
            return False
        with self._lock:
            self._fresh[replica].add(gradients, loss, samples, step, work)
            self.tally.add(loss, samples)
        return True

    def boundary(self) -> None:
        """Nothing is due."""

    def leave_out(self, replica: int) -> bool:
        with self._lock:
            self._lose(replica)
        return True

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        if not self._parameters:
            return  # of who never has any nobody reads the vector, which so takes no memory
        with self._lock:
            fresh, self._fresh = [sums for sums in self._fresh if sums.samples], [Sums() for _ in self._fresh]
            before, doubts = self.tally.outgoing, self.tally.doubts.values()
            if fresh:
                oldest = min(sums.step for sums in fresh)
                self._outgoing_step = min(self._outgoing_step, oldest) if before else oldest
            self.tally.send(line for sums in fresh for line in sums.work)
            total = self.tally.outgoing
        if before and self._counted is not None and self._counted.held is not None:
            flat.mul_((before + self._counted.samples) / before)
            flat.sub_(self._counted.held, alpha=self._counted.samples / before)
        self._counted = None
        if before and fresh and any(doubt.held is None for doubt in doubts):
            kept = flat.clone()
            for doubt in doubts:
                doubt.held = kept if doubt.held is None else doubt.held
        if not before:
            flat.zero_()
        elif fresh:
            flat.mul_(before / total)
        for sums in fresh:
            for mean, gradient in zip(self._layout.views(flat), sums.gradients, strict=True):
                mean.add_(gradient.cpu(), alpha=1 / total)

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
            for replica, sums in enumerate(self._fresh):
                if sums.samples and sums.step < step:
                    dropped += sums.samples
                    self._lose(replica)
        return dropped

    def forget(self) -> int:
        with self._lock:
            dropped = self.tally.samples
            self._drop_outgoing()
            self.tally.drop_fresh()
            self._fresh = [Sums() for _ in self._fresh]
        return dropped

    def _drop_outgoing(self) -> None:
        self.tally.drop_outgoing()
        self._counted = None

    def _lose(self, replica: int) -> None:
        lost, self._fresh[replica] = self._fresh[replica], Sums()
        self.tally.lose(lost.samples, lost.loss)


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
