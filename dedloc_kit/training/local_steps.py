"""Local-steps training: every peer takes optimizer steps of its own, and the swarm averages what they have learned.

After DiLoCo (Douillard et al. 2023, arXiv 2311.08105): what travels is how far a peer has moved away from the shared
parameters, once for many local steps. Everything else (rounds, weights by samples, faults) is as with gradients.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dedloc_kit.training.gradients import Gradients
from dedloc_kit.training.state import Replica, Stepping, TrainingState


class LocalSteps(Gradients):
    """Takes the place of Gradients: what is outgoing is the way that the replica has gone since the shared parameters.

    :param local_batch: samples of one local step
    :param max_norm: of a local step's gradient
    :param learning_rate: of a local step, given the global step
    """

    def __init__(
        self,
        replica: Replica,
        state: TrainingState,
        optimizer: Stepping,
        *,
        local_batch: int,
        max_norm: float,
        learning_rate: Callable[[int], float],
    ) -> None:
        super().__init__(list(replica.model.parameters()), state.layout)
        self._replica, self._optimizer = replica, optimizer
        self._local_batch, self._max_norm, self._learning_rate = local_batch, max_norm, learning_rate
        self._gathered_samples = 0  # toward the next local step
        self._base = self._copy()  # what has counted: the way from here is still to be averaged
        self._snapshot = self._base
        self._snapshots: dict[str, list[Tensor]] = {}  # of rounds in doubt

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int) -> bool:
        """As Gradients.add; takes a local step when enough samples have come together."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._parameters]
        finite = math.isfinite(loss) and bool(torch.stack(torch._foreach_norm(gradients)).isfinite().all())
        for parameter in self._parameters:
            parameter.grad = None
        if not finite:
            return False
        self._fresh = self._fresh or [torch.zeros_like(gradient) for gradient in gradients]
        torch._foreach_add_(self._fresh, gradients, alpha=float(samples))
        self._gathered_samples += samples
        with self._lock:
            if self._gathered_samples >= self._local_batch:
                self._take_local_step(step)
            self.fresh_samples += samples
            self._fresh_loss += loss * samples
        return True

    def _take_local_step(self, step: int) -> None:
        torch._foreach_div_(self._fresh, float(self._gathered_samples))
        for parameter, mean in zip(self._parameters, self._fresh, strict=True):
            parameter.grad = mean
        torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(step)
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        torch._foreach_zero_(self._fresh)
        self._gathered_samples = 0

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        """`flat` takes the way from where the replica is to what has counted: as a gradient it points back."""
        with self._lock:
            self._snapshot = self._copy()
            self.outgoing_samples, self._outgoing_loss = self.samples, self._outgoing_loss + self._fresh_loss
            self.fresh_samples, self._fresh_loss = 0, 0.0
            base = self._base
        for way, begin, end in zip(self._layout.views(flat), base, self._snapshot, strict=True):
            torch.sub(begin.cpu(), end.cpu(), out=way)

    def doubt(self, round_id: str) -> None:
        super().doubt(round_id)
        self._snapshots[round_id] = self._snapshot

    def count_outgoing(self) -> None:
        with self._lock:
            self._base = self._snapshot
        super().count_outgoing()

    def settle(self, rounds: Iterable[str]) -> None:
        rounds = list(rounds)
        counted = next((self._snapshots[round_id] for round_id in rounds if round_id in self._snapshots), None)
        if counted is not None:
            with self._lock:
                self._base = counted
        super().settle(rounds)
        self._counted = None  # the way is measured anew each time, so nothing has to come out of it

    def drop_older_than(self, step: int) -> int:
        """A way is as good from newer parameters on; nothing is dropped."""
        return 0

    def forget(self) -> int:
        self._gathered_samples = 0
        return super().forget()

    def _drop_outgoing(self) -> None:
        super()._drop_outgoing()
        self._snapshots.clear()

    def rebase(self, newer: Sequence[Tensor]) -> None:
        """Go on from there, by the way that has not been averaged yet."""
        with self._lock:
            moved = self.samples > 0
            fresh = [theirs.detach().to(mine.device, copy=True) for mine, theirs in zip(self._base, newer, strict=True)]
            for mine, base, theirs in zip(self._parameters, self._base, fresh, strict=True):
                mine.copy_(theirs + (mine - base) if moved else theirs)
            self._base = fresh

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]
