"""A device at work: forward and backward of one microbatch after the other, without waiting for it."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dedloc_kit.learning.train.computing.checkpointing import Checkpointing
from dedloc_kit.learning.train.computing.device import free_cached, out_of_memory
from dedloc_kit.learning.train.computing.loss_scale import LossScale, loss_scaled
from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradient_sum import Added, Snapshot
from dedloc_kit.learning.types import Loss

Batch = dict[str, Tensor]

LossFunction = Callable[[nn.Module, Batch, int], Loss]
"""As `Task.loss`."""

Prepare = Callable[[Batch], Batch]
"""Adds to a batch what the forward pass would have to look up, on the CPU; a part of a batch is prepared anew."""

Work = Callable[[Batch, int], bytes]
"""The line of work that names a batch, computed with the parameters of a global step; empty if it has no name."""


class Computed(NamedTuple):
    """What became of a microbatch."""

    replica: int
    """The number of the replica that computed it."""
    samples: int
    loss: float
    """The mean."""
    weight: float
    finite: bool = True
    """Otherwise it was skipped: its loss or its gradient is not finite."""
    rescaled: bool = False
    """It overflowed because of float16, as happens now and then; the next ones will not."""


class Card:
    """Computes the gradients of a replica and adds them up, waiting for the device once a microbatch at most: for the
    outcome of the one before, while the device computes this one. On the CPU each outcome is known at once.

    Use it in one thread; `snapshot` may be called in another.

    :param half: what autocast computes with, or none for float32. With float16 the loss has a scale of this card's own:
        gradients are divided by it before they are added to others.
    :param number: of the replica, for `Computed`
    """

    def __init__(
        self,
        replica: FlatModel,
        loss: LossFunction,
        half: torch.dtype | None = None,
        *,
        prepare: Prepare = dict,
        work: Work = lambda batch, step: b"",
        number: int = 0,
    ) -> None:
        self.replica, self.model, self.device, self.number = replica, replica.model, replica.device, number
        self.checkpointing = Checkpointing(replica.model)
        self._loss, self._half, self._prepare, self._work = loss, half, prepare, work
        self._scale = LossScale(half)
        self._ahead = 0 if replica.copies.here else 1
        self._launched: deque[Added] = deque()

    def submit(self, batch: Batch) -> bool:
        """Start to compute the gradient of a batch and to add it to the replica's sum.

        Returns False, and adds nothing, if the device's memory does not hold so many samples at once.
        """
        try:
            scale, loss = self._backward(batch)
            step = self.replica.step
            samples, work = samples_in(batch), self._work(batch, step)
            self._launched.append(self.replica.gradients.add(loss, samples, step, work, scale))
            return True
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Only out here does nothing hold the tensors of the attempt any more.
        self.clear()
        free_cached(self.device)
        return False

    def results(self) -> list[Computed]:
        """The outcomes of microbatches, once each, in their order: of all but the newest, on the CPU of all."""
        return self._results(self._ahead)

    def finish(self) -> list[Computed]:
        """The outcomes of all that are left. Waits until the device has nothing to do."""
        return self._results(0)

    def snapshot(self) -> Snapshot | None:
        """The sum, which begins anew, copied to the CPU beside what the device computes; none if it is empty."""
        cut = self.replica.gradients.cut()
        return None if cut is None else cut.fetch()

    def load(self, flat: Tensor) -> None:
        """As `FlatModel.load`: one copy of all parameters, beside what the device computes."""
        self.replica.load(flat)

    def measure(self, batch: Batch) -> Computed | None:
        """Leave the gradient of a batch in the `.grad` of the parameters, until `clear`; none if the memory does not
        hold so many samples.

        For the trial of sizes, for measuring and for computing a microbatch again: it waits for the device.
        """
        self.clear()
        try:
            scale, loss = self._backward(batch)
            gradient = self.replica.gradients.vector
            if scale != 1.0:
                gradient.mul_(1.0 / scale)
            norm = torch.linalg.vector_norm(gradient)
            mean = loss.mean.float()
            value, finite = torch.stack([mean, norm.isfinite() & mean.isfinite()]).tolist()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        else:
            rescaled = self._scale.learn(scale, value, bool(finite))
            return Computed(self.number, samples_in(batch), value, loss.weight, bool(finite), rescaled)
        self.clear()
        free_cached(self.device)
        return None

    def clear(self) -> None:
        """Forget the gradient of the last batch."""
        self.replica.gradients.clear()

    def _results(self, ahead: int) -> list[Computed]:
        found = []
        while len(self._launched) > ahead:
            added = self._launched.popleft()
            loss, finite = self.replica.gradients.outcome(added)
            rescaled = self._scale.learn(added.scale, loss, finite)
            found.append(Computed(self.number, added.samples, loss, added.weight, finite, rescaled))
        return found

    def _backward(self, batch: Batch) -> tuple[float, Loss]:
        """Launch both passes; the scale of the gradient of the mean loss, and the loss on the device."""
        prepared = self._prepare(batch)
        given = dict(zip(prepared, self.replica.copies.to_device(prepared.values()), strict=True))
        half = torch.autocast(self.device.type, dtype=self._half or torch.bfloat16, enabled=self._half is not None)
        scale = self._scale.value
        with loss_scaled(scale), half:
            loss = self._loss(self.model, given, self.replica.step)
            mean = loss.mean
        (mean if scale == 1.0 else mean.float() * scale).backward()
        return scale, loss._replace(total=loss.total.detach())


def samples_in(batch: Batch) -> int:
    """How many samples a batch holds."""
    return len(next(iter(batch.values())))
