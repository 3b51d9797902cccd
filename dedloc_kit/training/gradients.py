"""A peer's gradients on their way into a global step, and how many samples they stand for."""

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dedloc_kit.training.flat import FlatLayout

MAX_BATCHES = 64
"""Global batches that one peer may have gathered: what rounds fail to average piles up, but not for ever. A record
that claims more is not believed, and a volunteer waits before it comes to that."""


@dataclass
class _Doubt:
    """What was outgoing when a round failed here, which may have succeeded for others."""

    samples: int
    loss: float
    mean: Tensor | None = None
    """None as long as it is all that is outgoing."""


class Gradients:
    """Gradients are `fresh` while they accumulate, then `outgoing` from the snapshot for a round until they count.

    What a failed round did not average stays outgoing and goes into the next one, together with what is fresh by
    then. A failed round may have succeeded for others, though: until this peer has learned which, it is in doubt.

    One thread adds, another one may do the rest.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], layout: FlatLayout) -> None:
        self._parameters, self._layout = parameters, layout
        self._lock = threading.Lock()
        self._fresh: list[Tensor] = []  # allocated with the first gradient: a follower never has one
        self._spare: list[Tensor] = []  # takes its place while a snapshot is made, so that adding never waits
        self.fresh_samples = self.outgoing_samples = 0
        self._fresh_loss = self._outgoing_loss = 0.0  # sums over the samples
        self._fresh_step = self._outgoing_step = 0  # the oldest parameters that these were computed with
        self._doubts: dict[str, _Doubt] = {}
        self._counted: _Doubt | None = None  # part of the outgoing mean that has to come out of it again
        self.counted_samples = 0
        """Samples that went into finished global steps since this peer started."""

    @property
    def samples(self) -> int:
        """Samples that are not yet part of a global step."""
        return self.fresh_samples + self.outgoing_samples

    @property
    def outgoing_loss(self) -> float | None:
        """The mean loss over the outgoing samples; none if there are none."""
        return self._outgoing_loss / self.outgoing_samples if self.outgoing_samples else None

    def rebase(self, newer: Sequence[Tensor]) -> None:
        """Newer shared parameters have come: make them those of the model."""
        for mine, theirs in zip(self._parameters, newer, strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int) -> bool:
        """Add the parameters' gradients (means over `samples`, with the parameters of `step`) and clear them.

        Returns False, and adds nothing, if the loss or a gradient is not finite: one such number would poison
        everyone's average. The norms overflow well before the gradients do, so nothing that is added can overflow
        in the average either.
        """
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        finite = math.isfinite(loss) and bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
        if finite:
            with self._lock:
                self._fresh = self._fresh or _zeros(self._parameters)
                torch._foreach_add_(self._fresh, gradients, alpha=float(samples))
                self._fresh_step = step if not self.fresh_samples else min(self._fresh_step, step)
                self.fresh_samples += samples
                self._fresh_loss += loss * samples
        for parameter in self._parameters:
            parameter.grad = None
        return finite

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        """Turn the fresh gradients into outgoing ones: `flat` (on the CPU) holds those and takes the new mean."""
        with self._lock:
            fresh, self._fresh = self._fresh, self._spare
            samples, loss, step = self.fresh_samples, self._fresh_loss, self._fresh_step
            before, total = self.outgoing_samples, self.samples
            if samples:
                self._outgoing_step = min(self._outgoing_step, step) if before else step
            self.outgoing_samples, self._outgoing_loss = total, self._outgoing_loss + loss
            self.fresh_samples, self._fresh_loss = 0, 0.0
        if before and self._counted is not None and self._counted.mean is not None:
            flat.mul_((before + self._counted.samples) / before)
            flat.sub_(self._counted.mean, alpha=self._counted.samples / before)
        self._counted = None
        if before and samples and any(doubt.mean is None for doubt in self._doubts.values()):
            kept = flat.clone()
            for doubt in self._doubts.values():
                doubt.mean = kept if doubt.mean is None else doubt.mean
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
        """This round failed here; the outgoing samples may have counted for others."""
        self._doubts[round_id] = _Doubt(self.outgoing_samples, self._outgoing_loss)

    def count_outgoing(self) -> None:
        """The outgoing samples are part of a global step."""
        with self._lock:
            self.counted_samples += self.outgoing_samples
            self._drop_outgoing()

    def settle(self, rounds: Iterable[str]) -> None:
        """These rounds have led to the swarm's state: if one was in doubt, what was in it has counted."""
        with self._lock:
            counted = next((self._doubts[round_id] for round_id in rounds if round_id in self._doubts), None)
            if counted is None:
                return
            self.counted_samples += counted.samples
            left, loss = self.outgoing_samples - counted.samples, self._outgoing_loss - counted.loss
            self._drop_outgoing()
            if left:
                self.outgoing_samples, self._outgoing_loss, self._counted = left, loss, counted

    def drop_older_than(self, step: int) -> int:
        """Forget gradients of parameters from before this step; returns how many samples that were."""
        dropped = 0
        with self._lock:
            if self.outgoing_samples and self._outgoing_step < step:
                dropped += self.outgoing_samples
                self._drop_outgoing()
            if self.fresh_samples and self._fresh_step < step:
                dropped += self.fresh_samples
                torch._foreach_zero_(self._fresh)
                self.fresh_samples, self._fresh_loss = 0, 0.0
        return dropped

    def forget(self) -> int:
        """Drop all that has not counted, of whatever age; returns how many samples that were."""
        with self._lock:
            dropped = self.samples
            self._drop_outgoing()
            self.fresh_samples, self._fresh_loss = 0, 0.0
            if self._fresh:
                torch._foreach_zero_(self._fresh)
        return dropped

    def _drop_outgoing(self) -> None:
        self.outgoing_samples, self._outgoing_loss = 0, 0.0
        self._doubts.clear()
        self._counted = None


def _zeros(parameters: Sequence[torch.nn.Parameter]) -> list[Tensor]:
    return [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
