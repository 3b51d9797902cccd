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


class Sums:
    """What one replica has added up, on its device."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        """Empty as long as there are none: a follower never has any."""
        self.samples, self.loss = 0, 0.0  # the latter summed over the samples
        self.step = 0  # the oldest parameters that these were computed with

    def add(self, gradients: list[Tensor], samples: int) -> None:
        """Add gradients, means over so many samples; the first ones are taken over, which saves their memory."""
        if self.gradients:
            torch._foreach_add_(self.gradients, gradients, alpha=float(samples))
        else:
            torch._foreach_mul_(gradients, float(samples))
            self.gradients = gradients

    def count(self, loss: float, samples: int, step: int) -> None:
        self.step = min(self.step, step) if self.samples else step
        self.samples += samples
        self.loss += loss * samples


class Gradients:
    """Gradients are `fresh` while they accumulate, then `outgoing` from the snapshot for a round until they count.

    What a failed round did not average stays outgoing and goes into the next one, together with what is fresh by
    then. A failed round may have succeeded for others, though: until this peer has learned which, it is in doubt.

    One thread adds, another one may do the rest.

    :param parameters: of the replica on each device of this host
    """

    def __init__(self, parameters: Sequence[Sequence[torch.nn.Parameter]], layout: FlatLayout) -> None:
        self._parameters, self._layout = parameters, layout
        self._lock = threading.Lock()
        self._fresh = [Sums() for _ in parameters]
        self.outgoing_samples, self._outgoing_loss = 0, 0.0  # the latter summed over the samples
        self._outgoing_step = 0  # the oldest parameters that these were computed with
        self._doubts: dict[str, _Doubt] = {}
        self._counted: _Doubt | None = None  # part of the outgoing mean that has to come out of it again
        self.counted_samples = 0
        """Samples that went into finished global steps since this peer started."""

    @property
    def fresh_samples(self) -> int:
        """Samples that have come since the last snapshot."""
        return sum(fresh.samples for fresh in self._fresh)

    @property
    def samples(self) -> int:
        """Samples that are not yet part of a global step."""
        return self.fresh_samples + self.outgoing_samples

    @property
    def outgoing_loss(self) -> float | None:
        """The mean loss over the outgoing samples; none if there are none."""
        return self._outgoing_loss / self.outgoing_samples if self.outgoing_samples else None

    def rebase(self, newer: Sequence[Tensor], replica: int = 0) -> None:
        """Newer shared parameters have come: make them those of a replica."""
        for mine, theirs in zip(self._parameters[replica], newer, strict=True):
            mine.copy_(theirs)

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int, replica: int = 0) -> bool:
        """Add a replica's gradients (means over `samples`, with the parameters of `step`) and clear them.

        Returns False, and adds nothing, if the loss or a gradient is not finite: one such number would poison
        everyone's average. The norms overflow well before the gradients do, so nothing that is added can overflow
        in the average either.
        """
        gradients = self._take(loss, replica)
        if gradients is None:
            return False
        with self._lock:
            self._fresh[replica].add(gradients, samples)
            self._fresh[replica].count(loss, samples, step)
        return True

    def boundary(self) -> None:
        """All replicas have added what they computed with the parameters of the moment."""

    def leave_out(self, replica: int) -> bool:
        """This replica's device has failed, and what it added since the last snapshot cannot be had any more.

        Returns whether this host can go on without it.
        """
        with self._lock:
            self._fresh[replica] = Sums()
        return True

    def _take(self, loss: float, replica: int) -> list[Tensor] | None:
        """A replica's gradients, which it has no more; none if they or the loss are not finite."""
        parameters = self._parameters[replica]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        finite = math.isfinite(loss) and bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
        return gradients if finite else None

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        """Turn the fresh gradients into outgoing ones: `flat` (on the CPU) holds those and takes the new mean."""
        with self._lock:
            fresh, self._fresh = [sums for sums in self._fresh if sums.samples], [Sums() for _ in self._fresh]
            before, total = self.outgoing_samples, self.outgoing_samples + sum(sums.samples for sums in fresh)
            for sums in fresh:
                self._outgoing_step = min(self._outgoing_step, sums.step) if self.outgoing_samples else sums.step
                self.outgoing_samples += sums.samples
                self._outgoing_loss += sums.loss
        if before and self._counted is not None and self._counted.mean is not None:
            flat.mul_((before + self._counted.samples) / before)
            flat.sub_(self._counted.mean, alpha=self._counted.samples / before)
        self._counted = None
        if before and fresh and any(doubt.mean is None for doubt in self._doubts.values()):
            kept = flat.clone()
            for doubt in self._doubts.values():
                doubt.mean = kept if doubt.mean is None else doubt.mean
        if not before:
            flat.zero_()
        elif fresh:
            flat.mul_(before / total)
        for sums in fresh:
            for mean, gradient in zip(self._layout.views(flat), sums.gradients, strict=True):
                mean.add_(gradient.cpu(), alpha=1 / total)

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
            for replica, sums in enumerate(self._fresh):
                if sums.samples and sums.step < step:
                    dropped += sums.samples
                    self._fresh[replica] = Sums()
        return dropped

    def forget(self) -> int:
        """Drop all that has not counted, of whatever age; returns how many samples that were."""
        with self._lock:
            dropped = self.samples
            self._drop_outgoing()
            self._fresh = [Sums() for _ in self._fresh]
        return dropped

    def _drop_outgoing(self) -> None:
        self.outgoing_samples, self._outgoing_loss = 0, 0.0
        self._doubts.clear()
        self._counted = None
