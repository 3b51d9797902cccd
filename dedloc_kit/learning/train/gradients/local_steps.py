"""Local-steps training: each peer takes optimizer steps of its own, and rounds average their pseudo-gradients.

After DiLoCo (Douillard et al. 2023, arXiv 2311.08105): a pseudo-gradient is the distance from a peer's parameters back
to the shared ones, sent once for many local steps. Rounds, weights by samples and faults are as with gradients.

With `averaging.overlap` local steps continue during a round. When its average arrives, the peer adds the distance that
it has moved since the snapshot to the new shared parameters (as in Streaming DiLoCo, Douillard et al. 2025, arXiv
2501.18512). Its optimizer keeps its state.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradient_sum import LossSum
from dedloc_kit.learning.train.gradients.accumulator import SampleCounter
from dedloc_kit.learning.train.state.state import Stepping

WARM_UP = 10
"""Local steps in which a session's rate rises to the run's: its optimizer has no moments yet, and so Adam's first steps
are as large as a step can be. Moments kept from one session to the next did no better in a simulation, and would have
to be stored."""


class LocalSteps:
    """Accumulates pseudo-gradients. The replicas of a host take each local step together, with the mean of their
    gradients: the first one takes it, the others copy its parameters. A local step waits for each device once, since it
    must know whether enough samples are finite.

    :param local_batch: samples of one local step
    :param max_norm: of a local step's gradient
    :param learning_rate: of a local step, given the global step; the first `WARM_UP` ones of a session take less
    """

    def __init__(
        self,
        replicas: Sequence[FlatModel],
        optimizer: Stepping,
        *,
        local_batch: int,
        max_norm: float,
        learning_rate: Callable[[int], float],
    ) -> None:
        self.counter = SampleCounter[Tensor](self._known_pending)  # `held` is a distance
        self._optimizer = optimizer
        self._first, self._replicas = replicas[0], dict(enumerate(replicas))
        self._local_batch, self._max_norm, self._learning_rate = local_batch, max_norm, learning_rate
        self._lock = threading.Lock()
        self._stepped, self._stepped_loss = 0, LossSum()  # of the local steps since the last snapshot
        self._sent = self._nothing_sent()  # of each sum what a snapshot has sent before its step
        self._taken = 0  # local steps of this session
        # With the padding of the first replica's device:
        self._base = self._copy()  # the distance from here is not yet averaged
        # A distance, not parameters: it stays true when the replica goes on from other shared parameters meanwhile.
        self._in_flight = torch.empty(0)

    @torch.no_grad()
    def boundary(self) -> None:
        """Takes a local step when enough samples have come together."""
        with self._lock:
            if sum(replica.gradients.samples for replica in self._replicas.values()) >= self._local_batch:
                sums = self._sums()
                if sum(samples for samples, _ in sums.values()) >= self._local_batch:
                    self._count(sums)
                    self._take_local_step(sum(loss.weight for _, loss in sums.values()))

    def leave_out(self, replica: int) -> bool:
        """The first replica takes the steps, so nothing goes on without it."""
        if not replica:
            return False
        with self._lock:
            self._replicas.pop(replica).gradients.drop()
            del self._sent[replica]
        return True

    def _take_local_step(self, weight: float) -> None:
        gradient, parameters = self._first.gradients.vector, list(self._first.model.parameters())
        for replica in self._replicas.values():
            if (cut := replica.gradients.cut()) is not None:
                gradient.add_(cut.vector.to(gradient.device))
        gradient.div_(weight or 1.0)
        torch.nn.utils.clip_grad_norm_(parameters, self._max_norm)
        self._taken += 1
        risen = min(1.0, self._taken / (WARM_UP + 1))
        for group in self._optimizer.param_groups:
            group["lr"] = risen * self._learning_rate(self._first.step)
        self._optimizer.step()
        self._first.gradients.clear()
        self._follow()

    def _sums(self) -> dict[int, tuple[int, LossSum]]:
        """The samples and the loss of each replica's sum."""
        return {number: replica.gradients.totals() for number, replica in self._replicas.items()}

    def _count(self, sums: dict[int, tuple[int, LossSum]]) -> None:
        """Count sums as part of a local step."""
        for number, (samples, loss) in sums.items():
            sent, sent_loss = self._sent[number]
            self._stepped, self._stepped_loss = self._stepped + samples - sent, self._stepped_loss + loss - sent_loss
        self._sent = self._nothing_sent()

    def _nothing_sent(self) -> dict[int, tuple[int, LossSum]]:
        return dict.fromkeys(self._replicas, (0, LossSum()))

    def _follow(self) -> None:
        """Copy the first replica's parameters to the others."""
        for replica in self._replicas.values():
            if replica is not self._first:
                replica.vector.copy_(self._first.vector)

    @torch.no_grad()
    def load_in_flight(self, flat: Tensor) -> None:
        """`flat` takes the pseudo-gradient: from the replica's parameters back to those that are averaged."""
        with self._lock:
            self._in_flight = distance = self._first.vector - self._base
            sums = self._sums()
            self._count(sums)
            self.counter.send(self._stepped, self._stepped_loss)
            self._stepped, self._stepped_loss, self._sent = 0, LossSum(), sums
        self._first.to_wire(distance, flat).neg_()

    def mark_unconfirmed(self, round_id: str) -> None:
        self.counter.mark_unconfirmed(round_id, self._in_flight)

    def mark_applied(self) -> None:
        with self._lock:
            if self.counter.in_flight:  # unless it has been forgotten since
                self._base.add_(self._in_flight)
            self.counter.mark_applied()

    def confirm(self, rounds: Iterable[str]) -> None:
        with self._lock:
            confirmed = self.counter.confirm(rounds)
            if confirmed is not None:
                self._base.add_(confirmed.held)

    def drop_older_than(self, step: int) -> int:
        """Nothing is dropped: a pseudo-gradient is as good for newer parameters."""
        return 0

    def forget(self) -> int:
        with self._lock:
            dropped = self.counter.in_flight + self._pending()
            self.counter.drop_in_flight()
            for replica in self._replicas.values():
                replica.gradients.drop()
            self._stepped, self._stepped_loss, self._sent = 0, LossSum(), self._nothing_sent()
            self._base = self._copy()  # a round may begin before the replica goes on from elsewhere
        return dropped

    @torch.no_grad()
    def rebase(self, newer: Tensor, replica: int = 0) -> None:
        """Add the distance that is not yet averaged to the newer parameters. The first replica does so for all."""
        if replica:
            return
        with self._lock:
            moved = self.counter.in_flight + self._pending() > 0
            mine, base, theirs = self._first.vector, self._base, self._first.onto(newer)
            mine.copy_(theirs + (mine - base) if moved else theirs)
            self._base = theirs
            self._follow()

    def _known_pending(self) -> int:
        with self._lock:
            return self._pending()

    def _pending(self) -> int:
        gathered = (each.gradients.samples - self._sent[number][0] for number, each in self._replicas.items())
        return self._stepped + sum(gathered)

    def _copy(self) -> Tensor:
        return self._first.vector.clone()
