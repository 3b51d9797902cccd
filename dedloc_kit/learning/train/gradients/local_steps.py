"""Local-steps training: every peer takes optimizer steps of its own, and the swarm averages what they have learned.

After DiLoCo (Douillard et al. 2023, arXiv 2311.08105): what travels is how far a peer has moved away from the shared
parameters, once for many local steps. Everything else (rounds, weights by samples, faults) is as with gradients.

With `averaging.overlap` local steps go on during a round. When its average comes, the peer goes on from the new shared
parameters by the way that it has gone since its part was fixed (as in Streaming DiLoCo, Douillard et al. 2025, arXiv
2501.18512); its optimizer remembers what it did.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dedloc_kit.learning.train.gradients.accumulator import Sums, Tally
from dedloc_kit.learning.train.gradients.gradients import taken
from dedloc_kit.learning.train.state.state import Replica, Stepping, TrainingState

WARM_UP = 10
"""Local steps in which a session's rate rises to the run's: its optimizer has no moments yet, and so Adam's first steps
are as large as a step can be. Moments kept from one session to the next did no better in a simulation, and would have
to be stored."""


class LocalSteps:
    """What is outgoing is the way that the replicas have gone since the shared parameters.

    They take each step together, with the mean of their gradients: the first one takes it, the others hold what it
    holds.

    :param local_batch: samples of one local step
    :param max_norm: of a local step's gradient
    :param learning_rate: of a local step, given the global step; the first `WARM_UP` ones of a session take less
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        state: TrainingState,
        optimizer: Stepping,
        *,
        local_batch: int,
        max_norm: float,
        learning_rate: Callable[[int], float],
    ) -> None:
        self.tally = Tally[list[Tensor]]()  # a doubt holds the way that was outgoing
        self._layout, self._optimizer = state.layout, optimizer
        self._parameters, *others = (list(replica.model.parameters()) for replica in replicas)
        self._others = dict(enumerate(others, start=1))
        self._local_batch, self._max_norm, self._learning_rate = local_batch, max_norm, learning_rate
        self._lock = threading.Lock()
        self._gathered = [Sums() for _ in replicas]  # toward the next local step
        self._taken = 0  # local steps of this session
        self._step = 0  # whose parameters the newest of it was computed with
        self._base = self._copy()  # what has counted: the way from here is still to be averaged
        # A way, not where the replica was: it stays true when that goes on from other shared parameters meanwhile.
        self._outgoing: list[Tensor] = []

    @torch.no_grad()
    def add(self, loss: float, samples: int, step: int, replica: int = 0, work: bytes = b"") -> bool:
        gradients = taken(self._others.get(replica, self._parameters), loss)
        if gradients is None:
            return False
        with self._lock:
            self._gathered[replica].add(gradients, loss, samples, step)
            self.tally.add(loss, samples)
        self._step = step
        return True

    @torch.no_grad()
    def boundary(self) -> None:
        """Takes a local step when enough samples have come together."""
        with self._lock:
            samples = sum(sums.samples for sums in self._gathered)
            if samples >= self._local_batch:
                self._take_local_step(samples)

    def leave_out(self, replica: int) -> bool:
        """Without the first one, which takes the steps, nothing goes on."""
        if not replica:
            return False
        with self._lock:
            del self._others[replica]
            lost, self._gathered[replica] = self._gathered[replica], Sums()
            if lost.samples <= self.tally.fresh:  # of what a snapshot holds already it is too late to take any out
                self.tally.lose(lost.samples, lost.loss)
        return True

    def _take_local_step(self, samples: int) -> None:
        mean, *rest = [sums.gradients for sums in self._gathered if sums.samples]
        for gradients in rest:
            for mine, theirs in zip(mean, gradients, strict=True):
                mine.add_(theirs.to(mine.device))
        torch._foreach_div_(mean, float(samples))
        for parameter, gradient in zip(self._parameters, mean, strict=True):
            parameter.grad = gradient.to(parameter.device)
        torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm)
        self._taken += 1
        risen = min(1.0, self._taken / (WARM_UP + 1))
        for group in self._optimizer.param_groups:
            group["lr"] = risen * self._learning_rate(self._step)
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        self._gathered = [Sums() for _ in self._gathered]
        self._follow()

    def _follow(self) -> None:
        """Let the other replicas hold what the first one holds."""
        for parameters in self._others.values():
            for theirs, mine in zip(parameters, self._parameters, strict=True):
                theirs.copy_(mine)

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        """`flat` takes the way from where the replica is to what has counted: as a gradient it points back."""
        with self._lock:
            self._outgoing = [end - begin for begin, end in zip(self._base, self._parameters, strict=True)]
            self.tally.send()
        for view, way in zip(self._layout.views(flat), self._outgoing, strict=True):
            torch.neg(way.cpu(), out=view)

    def doubt(self, round_id: str) -> None:
        self.tally.doubt(round_id, self._outgoing)

    def count_outgoing(self) -> None:
        with self._lock:
            if self.tally.outgoing:  # unless it has been forgotten since
                torch._foreach_add_(self._base, self._outgoing)
            self.tally.count()

    def settle(self, rounds: Iterable[str]) -> None:
        with self._lock:
            counted = self.tally.settle(rounds)
            if counted is not None:
                torch._foreach_add_(self._base, counted.held)

    def drop_older_than(self, step: int) -> int:
        """A way is as good from newer parameters on; nothing is dropped."""
        return 0

    def forget(self) -> int:
        with self._lock:
            dropped = self.tally.samples
            self.tally.drop_outgoing()
            self.tally.drop_fresh()
            self._gathered = [Sums() for _ in self._gathered]
            self._base = self._copy()  # a round may begin before the replica goes on from elsewhere
        return dropped

    def rebase(self, newer: Sequence[Tensor], replica: int = 0) -> None:
        """Go on from there, by the way that has not been averaged yet; the first replica does so for all."""
        if replica:
            return
        with self._lock:
            moved = self.tally.samples > 0
            fresh = [theirs.detach().to(mine.device, copy=True) for mine, theirs in zip(self._base, newer, strict=True)]
            for mine, base, theirs in zip(self._parameters, self._base, fresh, strict=True):
                mine.copy_(theirs + (mine - base) if moved else theirs)
            self._base = fresh
            self._follow()

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]
