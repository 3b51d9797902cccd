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

from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradient_sum import LossSum
from dedloc_kit.learning.train.gradients.accumulator import Tally
from dedloc_kit.learning.train.state.state import Stepping

WARM_UP = 10
"""Local steps in which a session's rate rises to the run's: its optimizer has no moments yet, and so Adam's first steps
are as large as a step can be. Moments kept from one session to the next did no better in a simulation, and would have
to be stored."""


class LocalSteps:
    """What is outgoing is the way that the replicas have gone since the shared parameters.

    They take each step together, with the mean of their gradients: the first one takes it, the others hold what it
    holds. A local step waits for each device once: whether enough samples are finite must be known.

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
        self.tally = Tally[Tensor](self._told_fresh)  # a doubt holds the way that was outgoing
        self._optimizer = optimizer
        self._first, self._replicas = replicas[0], dict(enumerate(replicas))
        self._local_batch, self._max_norm, self._learning_rate = local_batch, max_norm, learning_rate
        self._lock = threading.Lock()
        self._stepped, self._stepped_loss = 0, LossSum()  # in the local steps since the last snapshot
        self._sent = self._nothing_sent()  # the same of what a snapshot told of before its step
        self._taken = 0  # local steps of this session
        # With the padding of the first replica's device:
        self._base = self._copy()  # what has counted: the way from here is still to be averaged
        # A way, not where the replica was: it stays true when that goes on from other shared parameters meanwhile.
        self._outgoing = torch.empty(0)

    @torch.no_grad()
    def boundary(self) -> None:
        """Takes a local step when enough samples have come together."""
        with self._lock:
            if sum(replica.gradients.samples for replica in self._replicas.values()) >= self._local_batch:
                told = self._told()
                if sum(samples for samples, _ in told.values()) >= self._local_batch:
                    self._count(told)
                    self._take_local_step(sum(loss.weight for _, loss in told.values()))

    def leave_out(self, replica: int) -> bool:
        """Without the first one, which takes the steps, nothing goes on."""
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

    def _told(self) -> dict[int, tuple[int, LossSum]]:
        """Of how many samples each sum is, and their loss."""
        return {number: replica.gradients.totals() for number, replica in self._replicas.items()}

    def _count(self, told: dict[int, tuple[int, LossSum]]) -> None:
        """These have become part of a local step."""
        for number, (samples, loss) in told.items():
            sent, sent_loss = self._sent[number]
            self._stepped, self._stepped_loss = self._stepped + samples - sent, self._stepped_loss + loss - sent_loss
        self._sent = self._nothing_sent()

    def _nothing_sent(self) -> dict[int, tuple[int, LossSum]]:
        return dict.fromkeys(self._replicas, (0, LossSum()))

    def _follow(self) -> None:
        """Let the other replicas hold what the first one holds."""
        for replica in self._replicas.values():
            if replica is not self._first:
                replica.vector.copy_(self._first.vector)

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        """`flat` takes the way from where the replica is to what has counted: as a gradient it points back."""
        with self._lock:
            self._outgoing = way = self._first.vector - self._base
            told = self._told()
            self._count(told)
            self.tally.send(self._stepped, self._stepped_loss)
            self._stepped, self._stepped_loss, self._sent = 0, LossSum(), told
        self._first.to_wire(way, flat).neg_()

    def doubt(self, round_id: str) -> None:
        self.tally.doubt(round_id, self._outgoing)

    def count_outgoing(self) -> None:
        with self._lock:
            if self.tally.outgoing:  # unless it has been forgotten since
                self._base.add_(self._outgoing)
            self.tally.count()

    def settle(self, rounds: Iterable[str]) -> None:
        with self._lock:
            counted = self.tally.settle(rounds)
            if counted is not None:
                self._base.add_(counted.held)

    def drop_older_than(self, step: int) -> int:
        """A way is as good from newer parameters on; nothing is dropped."""
        return 0

    def forget(self) -> int:
        with self._lock:
            dropped = self.tally.outgoing + self._fresh()
            self.tally.drop_outgoing()
            for replica in self._replicas.values():
                replica.gradients.drop()
            self._stepped, self._stepped_loss, self._sent = 0, LossSum(), self._nothing_sent()
            self._base = self._copy()  # a round may begin before the replica goes on from elsewhere
        return dropped

    @torch.no_grad()
    def rebase(self, newer: Tensor, replica: int = 0) -> None:
        """Go on from there, by the way that has not been averaged yet; the first replica does so for all."""
        if replica:
            return
        with self._lock:
            moved = self.tally.outgoing + self._fresh() > 0
            mine, base, theirs = self._first.vector, self._base, self._first.onto(newer)
            mine.copy_(theirs + (mine - base) if moved else theirs)
            self._base = theirs
            self._follow()

    def _told_fresh(self) -> int:
        with self._lock:
            return self._fresh()

    def _fresh(self) -> int:
        gathered = (each.gradients.samples - self._sent[number][0] for number, each in self._replicas.items())
        return self._stepped + sum(gathered)

    def _copy(self) -> Tensor:
        return self._first.vector.clone()
