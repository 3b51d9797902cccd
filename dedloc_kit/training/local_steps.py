"""Local-steps training: every peer takes optimizer steps of its own, and the swarm averages what they have learned.

After DiLoCo (Douillard et al. 2023, arXiv 2311.08105): what travels is how far a peer has moved away from the shared
parameters, once for many local steps. Everything else (rounds, weights by samples, faults) is as with gradients.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dedloc_kit.training.gradients import Gradients, Sums
from dedloc_kit.training.state import Replica, SharedOptimizer, TrainingState


class LocalSteps(Gradients):
    """Takes the place of Gradients: what is outgoing is the way that the replica has gone since the shared parameters.

    All devices of a host take a step together, with the mean of their gradients: the first one takes it, and the other
    replicas hold what it holds.

    :param replicas: one on each device
    :param local_batch: samples of one local step
    :param max_norm: of a local step's gradient
    :param learning_rate: of a local step, given the global step
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        state: TrainingState,
        optimizer: SharedOptimizer,
        *,
        local_batch: int,
        max_norm: float,
        learning_rate: Callable[[int], float],
    ) -> None:
        super().__init__([list(replica.model.parameters()) for replica in replicas], state.layout)
        self._optimizer = optimizer
        self._local_batch, self._max_norm, self._learning_rate = local_batch, max_norm, learning_rate
        self._gathered = [Sums() for _ in replicas]  # toward the next local step
        self._others = set(range(1, len(replicas)))
        self._step = 0  # whose parameters the newest gradients were computed with
        self._base = self._copy()  # what has counted: the way from here is still to be averaged
        self._snapshot = self._base
        self._snapshots: dict[str, list[Tensor]] = {}  # of rounds in doubt

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int, replica: int = 0) -> bool:
        """As Gradients.add; a local step is taken at the boundary, when enough samples have come together."""
        gradients = self._take(loss, replica)
        if gradients is None:
            return False
        self._gathered[replica].add(gradients, samples)
        self._gathered[replica].count(loss, samples, step)
        self._step = step
        with self._lock:
            self._fresh[replica].count(loss, samples, step)
        return True

    @torch.no_grad()
    def boundary(self) -> None:
        gathered = [sums for sums in self._gathered if sums.samples]
        samples = sum(sums.samples for sums in gathered)
        if samples < self._local_batch:
            return
        first, *rest = [sums.gradients for sums in gathered]
        for gradients in rest:
            for mine, others in zip(first, gradients, strict=True):
                mine.add_(others.to(mine.device))
        torch._foreach_div_(first, float(samples))
        self._gathered = [Sums() for _ in self._gathered]
        with self._lock:
            self._take_local_step(first)
        self._follow()

    def leave_out(self, replica: int) -> bool:
        """As Gradients.leave_out; nothing goes on without the first one, which takes the steps."""
        if not replica:
            return False
        self._others.discard(replica)
        lost, self._gathered[replica] = self._gathered[replica], Sums()
        with self._lock:  # of what is in a snapshot already it is too late to take anything out
            fresh = self._fresh[replica]
            if fresh.samples >= lost.samples:
                fresh.samples, fresh.loss = fresh.samples - lost.samples, fresh.loss - lost.loss
        return True

    def _take_local_step(self, gradients: Sequence[Tensor]) -> None:
        parameters = self._parameters[0]
        for parameter, mean in zip(parameters, gradients, strict=True):
            parameter.grad = mean.to(parameter.device)
        torch.nn.utils.clip_grad_norm_(parameters, self._max_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate(self._step)
        self._optimizer.step()
        for parameter in parameters:
            parameter.grad = None

    def _follow(self) -> None:
        """Let the other replicas hold what the first one holds."""
        for replica in self._others:
            super().rebase(self._parameters[0], replica)

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        """`flat` takes the way from where the replica is to what has counted: as a gradient it points back."""
        with self._lock:
            self._snapshot = self._copy()
            self.outgoing_samples = self.samples
            self._outgoing_loss += sum(fresh.loss for fresh in self._fresh)
            self._fresh = [Sums() for _ in self._fresh]
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
        self._gathered = [Sums() for _ in self._gathered]
        return super().forget()

    def _drop_outgoing(self) -> None:
        super()._drop_outgoing()
        self._snapshots.clear()

    def rebase(self, newer: Sequence[Tensor], replica: int = 0) -> None:
        """Go on from there, by the way that has not been averaged yet; the first replica decides for all."""
        if replica:
            return
        with self._lock:
            moved = self.samples > 0
            fresh = [theirs.detach().to(mine.device, copy=True) for mine, theirs in zip(self._base, newer, strict=True)]
            for mine, base, theirs in zip(self._parameters[0], self._base, fresh, strict=True):
                mine.copy_(theirs + (mine - base) if moved else theirs)
            self._base = fresh
        self._follow()

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters[0]]
