"""One expert with its optimizer, and what it has been told for global steps that are to come."""

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.experts.network import Network
from dedloc_kit.experts.refused import Refused
from dedloc_kit.learning.train.flat import FlatLayout, Room, placed_together
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.optim.portable import norm
from dedloc_kit.learning.train.state.checkpoint import is_finite

AHEAD = 1
"""Global steps beyond the next one that gradients may be for: a trainer hears of a step before a host does."""

LARGEST = 1e12
"""No sum of gradients over a batch is as large in the mean."""
LARGE = 1e3
"""No parameters of an expert that learns are as large in the mean."""


class Sum(NamedTuple):
    """Gradients of an expert's parameters, each times its samples, and how many samples that are."""

    total: Tensor
    samples: int


class Pinned:
    """An expert as it was after a step; takes no more memory than a step before that is remembered."""

    def __init__(self, expert: "Expert", then: tuple[dict[str, Tensor], int] | None) -> None:
        self._expert, self.then = expert, then

    def state(self) -> tuple[dict[str, Tensor], int]:
        """Its tensors, as `Expert.copy`."""
        return self._expert.copy_of(self)


class Expert:
    """It takes every global step, also one for which nobody called it: its gradient is zero then, as it is where all
    experts are in one process.

    Threads may call it at the same time.

    :param network: it is taken over, its parameters become parts of one vector
    :param remembers: whether `pin` also has it as it was before its last step
    :param room: where all that lies which is as large as its parameters, and copies of it
    :ivar step: the finished global steps whose parameters it has
    """

    def __init__(
        self, network: Network, optimizer: OptimizerConfig, remembers: bool = False, room: Room = torch.zeros
    ) -> None:
        self._network, self._settings = network, optimizer
        self._remembers, self._room = remembers, room
        self._before: tuple[dict[str, Tensor], int] | None = None
        self._pinned = weakref.WeakSet[Pinned]()
        """By those who want it as it is now, or was: while somebody has an earlier one, the step before is not
        remembered besides."""
        self._parameters = list(network.parameters())
        self.layout = FlatLayout.of(self._parameters)
        groups = [{"params": self._parameters, "weight_decay": optimizer.weight_decay}]
        self._optimizer = build_optimizer(optimizer, groups)
        live = [*self._parameters, *self._optimizer.state_tensors()]
        for tensor, own in zip(live, placed_together(live, room), strict=True):
            tensor.data = own
        self.step = 0
        self._sums: dict[int, Sum] = {}
        self._passed_on = Counter[int]()
        """Samples of the sums for a step that other copies of it were told."""
        self._lock = threading.RLock()

    @torch.no_grad()
    def output(self, inputs: Tensor) -> Tensor:
        """What it makes of tokens, [tokens, width]."""
        with self._lock, torch.autocast(inputs.device.type, enabled=False):
            made: Tensor = self._network(inputs)
        return made

    def gradients(self, inputs: Tensor, gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Those of the inputs and of its parameters, by that of its output, which is computed again."""
        with self._lock, torch.enable_grad(), torch.autocast(inputs.device.type, enabled=False):
            given = inputs.detach().requires_grad_()
            of_inputs, *own = torch.autograd.grad(self._network(given), [given, *self._parameters], gradient)
        return of_inputs, own

    def check(self, step: int) -> None:
        """Raise Refused if gradients for this global step would not be taken."""
        if step < self.step + 1 - MAX_STALENESS:
            raise Refused("stale")
        if step > self.step + 1 + AHEAD:
            raise Refused("ahead")

    def add(self, gradients: Sequence[Tensor], step: int, samples: int) -> None:
        """Add gradients of its parameters, means over so many samples, for a global step.

        What comes late goes into the next one. Raises Refused as `check`.
        """
        with self._lock:
            self.check(step)
            due = self._due(step)
            total, before = self._sums.get(due) or Sum(self._room(self.layout.size), 0)
            for view, gradient in zip(self.layout.views(total), gradients, strict=True):
                view.add_(gradient, alpha=float(samples))
            self._sums[due] = Sum(total, before + samples)

    def take(self, step: int, samples: int, rate: float, said: Callable[[Tensor], Tensor] = lambda mean: mean) -> bool:
        """Take a global step, if it is the next one, over the mean of what it was told for it.

        :param samples: of all that are part of this step
        :param rate: the learning rate that the trunk has in it
        :param said: what becomes of the mean where others are told of it
        """
        with self._lock:
            if step != self.step + 1:
                return False
            told = self._sums.get(step)
            mean = torch.zeros(self.layout.size) if told is None else told.total / samples
            if not is_finite(mean):  # of numbers that each were; NaN would stay for good
                mean.zero_()
            self._take(step, said(mean), rate)
            self._sums.pop(step, None)  # not before: where memory ends, the step is taken later
            self._passed_on.pop(step, None)
            return True

    def follow(self, step: int, mean: Tensor, rate: float) -> None:
        """Take the same step as another copy of it, which is to know what this one was told; raises ValueError if that
        is not its next one."""
        with self._lock:
            if step != self.step + 1:
                raise ValueError(f"global step {step} does not follow {self.step}")
            self._take(step, mean.clone(), rate)

    def _take(self, step: int, mean: Tensor, rate: float) -> None:
        self._leave()
        torch.empty(self.layout.size)  # for the optimizer: there is room for it, or nothing changes
        self._apply(mean, rate)
        self.step = step

    @property
    def is_told(self) -> bool:
        """Has it been told anything that it has not learned from?"""
        with self._lock:
            return bool(self._sums)

    def take_sums(self) -> dict[int, Sum]:
        """What it was told, by the global step that it is for, so that another copy of it may be told instead."""
        with self._lock:
            sums, self._sums = self._sums, {}
            self._passed_on.clear()
            return sums

    def add_sums(self, sums: Mapping[int, Sum], most: int) -> None:
        """Add what other copies of it were told; as with `add` what comes late goes into the next step, and what is too
        old or far ahead is dropped. Raises Refused, and adds nothing, if one is larger than any can be.

        :param most: samples that all these sums for a step may be of; of more, the last ones are scaled down
        """
        if not all(norm(total.numpy()) <= LARGEST * math.sqrt(self.layout.size) for total, _ in sums.values()):
            raise Refused("absurd")
        with self._lock:
            for step, (total, samples) in sums.items():
                if not self.step + 1 - MAX_STALENESS <= step <= self.step + 1 + AHEAD:
                    continue
                due = self._due(step)
                counted = min(samples, most - self._passed_on[due])
                if counted > 0:
                    self._passed_on[due] += counted
                    mine, before = self._sums.get(due) or Sum(self._room(self.layout.size), 0)
                    self._sums[due] = Sum(mine.add_(total, alpha=counted / samples), before + counted)

    def _due(self, step: int) -> int:
        """The step that is taken with what is told for this one."""
        return max(step, self.step + 1)

    @torch.no_grad()
    def _apply(self, mean: Tensor, rate: float) -> None:
        """The same bits in, the same bits out, on every host; as `TrainingState.apply`."""
        scale = self._settings.max_grad_norm / (norm(mean.numpy()) + 1e-6)
        if scale < 1.0:
            mean.mul_(scale)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        for parameter, view in zip(self._parameters, self.layout.views(mean), strict=True):
            parameter.grad = view
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None

    def copy(self) -> tuple[dict[str, Tensor], int]:
        """Its tensors (parameters, and what the optimizer remembers of them) and the step that they are of."""
        with self._lock:
            tensors = self.tensors()
            copies = placed_together(tensors.values(), self._room)
            return dict(zip(tensors, copies, strict=True)), self.step

    def pin(self, step: int) -> Pinned:
        """Have it as it is after this step for as long as somebody has this, whatever becomes of it meanwhile; raises
        Refused if that is not the newest step, nor the one before and that is remembered."""
        with self._lock:
            if step == self.step:
                made = Pinned(self, None)
                self._pinned.add(made)
                return made
            if self._before is None or self._before[1] != step:
                raise Refused("stale")
            made = Pinned(self, self._before)
            self._pinned.add(made)
            return made

    def copy_of(self, pinned: Pinned) -> tuple[dict[str, Tensor], int]:
        """As `Pinned.state`."""
        with self._lock:
            return self.copy() if pinned.then is None else pinned.then

    def _leave(self) -> None:
        """It is about to change: one copy for all who have pinned it and for whoever asks later."""
        self._before = None  # its memory is free before more is taken
        now = [pinned for pinned in self._pinned if pinned.then is None]
        if now or (self._remembers and not self._pinned):
            copy = self.copy()
            for pinned in now:
                pinned.then = copy
            self._before = copy if self._remembers else None

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Take over such tensors; raises ValueError, and changes nothing, if they are not of such an expert.

        What it was told for steps until then is dropped.
        """
        self.check_tensors(tensors)
        with self._lock:
            if self._pinned:
                self._leave()
            for name, own in self.tensors().items():
                own.copy_(tensors[name])
            self.step, self._before = step, None
            self._sums = {due: each for due, each in self._sums.items() if step < due <= step + 1 + AHEAD}
            self._passed_on = Counter({due: self._passed_on[due] for due in self._sums})

    def check_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError if `load` would."""
        mine = self.tensors()
        if mine.keys() != tensors.keys():
            raise ValueError("its tensors are not those of an expert of this run")
        for name, own in mine.items():
            other = tensors[name]
            if own.shape != other.shape or own.dtype != other.dtype:
                raise ValueError(f"'{name}' has the shape {tuple(other.shape)}, not {tuple(own.shape)}")
            if not is_finite(other):
                raise ValueError(f"'{name}' holds numbers that are not finite")
            if name.startswith("model.") and float(other.norm()) > LARGE * math.sqrt(other.numel()):
                raise ValueError(f"'{name}' holds numbers that are far too large")

    def tensors(self) -> dict[str, Tensor]:
        """The live ones."""
        named = {f"model.{name}": parameter.detach() for name, parameter in self._network.named_parameters()}
        return named | {f"optimizer.{index}": each for index, each in enumerate(self._optimizer.state_tensors())}
