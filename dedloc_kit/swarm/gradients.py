"""A peer's gradients on their way into a global step, and how many samples they stand for."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class Gradients:
    """Gradients are `fresh` while they accumulate, then `outgoing` from the snapshot for a round until they count.

    What a failed round did not average stays outgoing and goes into the next one, together with what is fresh by
    then. A failed round may have succeeded for others, though: until this peer has learned which, it is in doubt.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._fresh = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
        self.fresh_samples = self.outgoing_samples = 0
        self._fresh_loss = self._outgoing_loss = 0.0  # sums over the samples
        self._doubts: dict[str, int] = {}
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

    @torch.no_grad()
    def add(self, loss: float, samples: int) -> bool:
        """Add the parameters' gradients (means over `samples`) and clear them.

        Returns False, and adds nothing, if the loss or a gradient is not finite: one such number would poison
        everyone's average.
        """
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        finite = math.isfinite(loss) and bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
        if finite:
            torch._foreach_add_(self._fresh, gradients, alpha=float(samples))
            self.fresh_samples += samples
            self._fresh_loss += loss * samples
        for parameter in self._parameters:
            parameter.grad = None
        return finite

    @torch.no_grad()
    def load_outgoing(self, means: Sequence[Tensor]) -> None:
        """Turn the fresh gradients into outgoing ones: `means` (on the CPU) holds those and takes the new mean."""
        before, total = self.outgoing_samples, self.samples
        for mean, fresh in zip(means, self._fresh, strict=True):
            if before:
                mean.mul_(before / total).add_(fresh.cpu(), alpha=1 / total)
            elif total:
                torch.mul(fresh.cpu(), 1 / total, out=mean)
            else:
                mean.zero_()
        self.outgoing_samples, self._outgoing_loss = total, self._outgoing_loss + self._fresh_loss
        self._drop_fresh()

    def doubt(self, round_id: str) -> None:
        """This round failed here; the outgoing samples may have counted for others."""
        self._doubts[round_id] = self.outgoing_samples

    def count_outgoing(self) -> None:
        """The outgoing samples are part of a global step."""
        self.counted_samples += self.outgoing_samples
        self.drop_outgoing()

    def settle(self, rounds: Iterable[str]) -> None:
        """These rounds have led to the swarm's state: if one was in doubt, what was in it has counted."""
        counted = next((self._doubts[round_id] for round_id in rounds if round_id in self._doubts), None)
        if counted is not None:
            self.counted_samples += counted
            self.drop_outgoing()

    def drop_outgoing(self) -> None:
        """Forget the outgoing gradients."""
        self.outgoing_samples, self._outgoing_loss = 0, 0.0
        self._doubts.clear()

    def drop(self) -> None:
        """Forget everything that is not part of a global step."""
        self._drop_fresh()
        self.drop_outgoing()

    def _drop_fresh(self) -> None:
        torch._foreach_zero_(self._fresh)
        self.fresh_samples, self._fresh_loss = 0, 0.0
