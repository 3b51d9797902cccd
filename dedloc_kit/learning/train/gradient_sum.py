"""Gradients of one model added up on its device over microbatches, with what they are over."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dedloc_kit.learning.train.aligned import AlignedLayout
from dedloc_kit.learning.train.copies import Copies, Readout
from dedloc_kit.learning.types import Loss

_TAIL = 1
"""Values behind a sum: the sum of the losses."""


@dataclass(eq=False)
class Added:
    """A microbatch whose gradient has been added to a sum, or was masked out there since it is not finite."""

    samples: int
    weight: float
    work: bytes
    scale: float
    """What its loss was multiplied with before it went backward."""
    readout: Readout

    def read(self) -> tuple[float, bool]:
        """Its mean loss, and whether it counts; waits until the device has computed that."""
        loss, finite = self.readout.read()
        return loss, bool(finite)


@dataclass(eq=False)
class Pending:
    """A sum on the device, and what the processor knows about it."""

    total: Tensor
    """float32 [layout.size + _TAIL]"""
    samples: int = 0
    """Without those of microbatches that are known not to be finite; so the weight."""
    weight: float = 0.0
    step: int = 0
    """The oldest parameters that the gradients were computed with."""
    work: list[bytes] = field(default_factory=list)
    unread: dict[Added, None] = field(default_factory=dict)

    def add(self, added: Added, step: int) -> None:
        self.step = min(self.step, step) if self.samples else step
        self.samples += added.samples
        self.weight += added.weight
        self.unread[added] = None

    def learn(self, added: Added, finite: bool) -> None:
        """Correct what is known; what has been learned already, or is of another sum, changes nothing."""
        if added not in self.unread:
            return
        del self.unread[added]
        if not finite:
            self.samples -= added.samples
            self.weight -= added.weight
        elif added.work:
            self.work.append(added.work)

    def learn_all(self) -> None:
        """The same of all that is not known yet, once the device has computed it."""
        for added in list(self.unread):
            self.learn(added, added.read()[1])


@dataclass(frozen=True)
class LossSum:
    """As `Loss`, once the device has computed it."""

    total: float = 0.0
    weight: float = 0.0

    def __add__(self, other: "LossSum") -> "LossSum":
        return LossSum(self.total + other.total, self.weight + other.weight)

    def __sub__(self, other: "LossSum") -> "LossSum":
        return LossSum(self.total - other.total, self.weight - other.weight)


@dataclass(frozen=True)
class Snapshot:
    """A sum, copied to the CPU."""

    gradients: list[Tensor]
    """Of each parameter: of the sum of the losses."""
    samples: int
    loss: LossSum
    step: int
    work: tuple[bytes, ...]


class GradientSum:
    """The gradients of a model, and their sum. Each `.grad` is a view of one vector on the device: clear it by `clear`.
    To set it to None would lose gradients silently.

    One thread adds; all else may be done in another one.

    :param parameters: float32, all on one device
    """

    def __init__(self, parameters: Sequence[nn.Parameter], copies: Copies | None = None) -> None:
        device = parameters[0].device
        self.layout = AlignedLayout.of(parameters)
        self.vector = torch.zeros(self.layout.size, device=device)
        """The gradient of the microbatch that is computed; zeros between two of them."""
        self._copies = copies or Copies(device)
        self._parameters, self._views = parameters, self.layout.views(self.vector)
        for parameter, view in zip(parameters, self._views, strict=True):
            parameter.grad = view
        self._checked = False
        self._lock = threading.Lock()
        self._pending: Pending | None = None

    @property
    def samples(self) -> int:
        """In the sum, without what is known not to be finite; the newest microbatch may turn out to be that."""
        with self._lock:
            return 0 if self._pending is None else self._pending.samples

    @torch.no_grad()
    def add(self, loss: Loss, samples: int, step: int, work: bytes = b"", scale: float = 1.0) -> Added:
        """Add the gradient that the last backward pass has left, and clear it. Nothing waits for the device.

        What is not finite is masked out together with its weight: one such number would poison everyone's average.
        The norm overflows well before the gradients do, so what is added does not overflow in the average either.

        :param loss: on the device, without the scale; its mean, times the scale, is what went backward
        :param step: the global step whose parameters it was computed with
        :param work: a line that names the samples; empty where nobody asks for it
        """
        self._check()
        mean = loss.mean.detach().float()
        finite = torch.linalg.vector_norm(self.vector).isfinite() & mean.isfinite()
        self.vector.masked_fill_(~finite, 0.0)
        readout = self._copies.readout(torch.stack([mean, finite.float()]))
        added = Added(samples, loss.weight, work, scale, readout)
        with self._lock:
            if self._pending is None:
                self._pending = Pending(self.vector.new_zeros(self.layout.size + _TAIL))
            self._pending.total[:-_TAIL].add_(self.vector, alpha=loss.weight / scale)
            self._pending.total[-_TAIL:].add_(torch.where(finite, mean, 0.0), alpha=loss.weight)
            self._pending.add(added, step)
        self.vector.zero_()
        return added

    def outcome(self, added: Added) -> tuple[float, bool]:
        """As `Added.read`; the number of samples is right afterwards."""
        loss, finite = added.read()
        with self._lock:
            if self._pending is not None:
                self._pending.learn(added, finite)
        return loss, finite

    def cut(self) -> "Cut | None":
        """Let the sum begin anew; what it was until now, if anything."""
        with self._lock:
            pending, self._pending = self._pending, None
            return None if pending is None else Cut(pending, self.layout, self._copies)

    def totals(self) -> tuple[int, LossSum]:
        """The samples of the sum, and their loss. Waits for the device; `samples` is right afterwards."""
        with self._lock:
            pending = self._pending
            if pending is None:
                return 0, LossSum()
            samples, weight, unread = pending.samples, pending.weight, list(pending.unread)
            tail, mark = pending.total[-_TAIL:].clone(), self._copies.mark()
        (total,) = self._copies.to_host(tail, mark).tolist()
        for added in unread:
            if not self.outcome(added)[1]:
                samples, weight = samples - added.samples, weight - added.weight
        return samples, LossSum(total, weight)

    def drop(self) -> int:
        """Forget the sum; returns of how many samples it was."""
        cut = self.cut()
        return 0 if cut is None else cut.samples

    def drop_older_than(self, step: int) -> int:
        """The same if part of it was computed with parameters from before this step."""
        with self._lock:
            old = self._pending is not None and self._pending.step < step
        return self.drop() if old else 0

    def clear(self) -> None:
        """Forget the gradient of the last backward pass."""
        self.vector.zero_()

    def _check(self) -> None:
        """Once: has the backward pass added in place?"""
        if self._checked:
            return
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is None or parameter.grad.data_ptr() != view.data_ptr():
                raise RuntimeError("a gradient was replaced instead of added to: set no .grad of this model")
        self._checked = True


class Cut:
    """A sum that nothing is added to any more, on its way to the CPU."""

    def __init__(self, pending: Pending, layout: AlignedLayout, copies: Copies) -> None:
        self._pending, self._layout, self._copies = pending, layout, copies
        self._mark = copies.mark()
        self.samples = pending.samples
        """Claimed so far; `fetch` tells how many there really are."""

    @property
    def vector(self) -> Tensor:
        """The sum on its device."""
        return self._pending.total[:-_TAIL]

    def fetch(self) -> Snapshot:
        """Copy it beside what the device computes; waits once, until the last microbatch in it is done."""
        pending = self._pending
        host = self._copies.to_host(pending.total, self._mark)
        pending.learn_all()
        (total,) = host[-_TAIL:].tolist()
        loss = LossSum(total, pending.weight)
        return Snapshot(self._layout.views(host[:-_TAIL]), pending.samples, loss, pending.step, tuple(pending.work))
