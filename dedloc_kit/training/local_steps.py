"""Local-steps training: every peer takes optimizer steps of its own, and the swarm averages what they have learned.

After DiLoCo (Douillard et al. 2023, arXiv 2311.08105): what travels is how far a peer has moved away from the shared
parameters, once for many local steps. Everything else (rounds, weights by samples, faults) is as with gradients.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dedloc_kit.training.accumulator import Tally
from dedloc_kit.training.gradients import taken
from dedloc_kit.training.state import Replica, SharedOptimizer, TrainingState


class LocalSteps:
    """What is outgoing is the way that the replica has gone since the shared parameters.

    :param local_batch: samples of one local step
    :param max_norm: of a local step's gradient
    :param learning_rate: of a local step, given the global step
    """

    def __init__(
        self,
        replica: Replica,
        state: TrainingState,
        optimizer: SharedOptimizer,
        *,
        local_batch: int,
        max_norm: float,
        learning_rate: Callable[[int], float],
    ) -> None:
        self.tally = Tally[list[Tensor]]()  # a doubt holds where the replica was
        self._parameters, self._layout, self._optimizer = list(replica.model.parameters()), state.layout, optimizer
        self._local_batch, self._max_norm, self._learning_rate = local_batch, max_norm, learning_rate
        self._lock = threading.Lock()
        self._sums = [torch.zeros_like(parameter) for parameter in self._parameters]
        self._gathered_samples = 0  # toward the next local step
        self._base = self._copy()  # what has counted: the way from here is still to be averaged
        self._snapshot = self._base

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int) -> bool:
        """Takes a local step when enough samples have come together."""
        gradients = taken(self._parameters, loss)
        if gradients is None:
            return False
        torch._foreach_add_(self._sums, gradients, alpha=float(samples))
        self._gathered_samples += samples
        with self._lock:
            if self._gathered_samples >= self._local_batch:
                self._take_local_step(step)
            self.tally.add(loss, samples)
        return True

    def _take_local_step(self, step: int) -> None:
        torch._foreach_div_(self._sums, float(self._gathered_samples))
        for parameter, mean in zip(self._parameters, self._sums, strict=True):
            parameter.grad = mean
        torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(step)
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        self._begin_local_step()

    def _begin_local_step(self) -> None:
        torch._foreach_zero_(self._sums)
        self._gathered_samples = 0

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        """`flat` takes the way from where the replica is to what has counted: as a gradient it points back."""
        with self._lock:
            self._snapshot = self._copy()
            self.tally.send()
            base = self._base
        for way, begin, end in zip(self._layout.views(flat), base, self._snapshot, strict=True):
            torch.sub(begin.cpu(), end.cpu(), out=way)

    def doubt(self, round_id: str) -> None:
        self.tally.doubt(round_id, self._snapshot)

    def count_outgoing(self) -> None:
        with self._lock:
            self._base = self._snapshot
            self.tally.count()

    def settle(self, rounds: Iterable[str]) -> None:
        with self._lock:
            counted = self.tally.settle(rounds)
            if counted is not None:
                self._base = counted.held

    def drop_older_than(self, step: int) -> int:
        """A way is as good from newer parameters on; nothing is dropped."""
        return 0

    def forget(self) -> int:
        with self._lock:
            dropped = self.tally.samples
            self.tally.drop_outgoing()
            self.tally.drop_fresh()
            self._begin_local_step()
        return dropped

    def rebase(self, newer: Sequence[Tensor]) -> None:
        """Go on from there, by the way that has not been averaged yet."""
        with self._lock:
            moved = self.tally.samples > 0
            fresh = [theirs.detach().to(mine.device, copy=True) for mine, theirs in zip(self._base, newer, strict=True)]
            for mine, base, theirs in zip(self._parameters, self._base, fresh, strict=True):
                mine.copy_(theirs + (mine - base) if moved else theirs)
            self._base = fresh

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]
