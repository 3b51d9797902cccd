"""A peer's gradients on their way into a global step.

Within a peer all labels count alike; peers count by their samples.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.gradient_sum import Cut, Snapshot
from dedloc_kit.learning.train.gradients.accumulator import SampleCounter, UnconfirmedRound


class Gradients:
    """Averages the gradient sums of several replicas; their mean is in flight.

    :param replicas: none for a follower
    """

    def __init__(self, replicas: Sequence[FlatModel]) -> None:
        # An unconfirmed round holds the mean that was in flight; None as long as that is all that is in flight.
        self.counter = SampleCounter[Tensor | None](self._pending)
        self._replicas = replicas
        self._sums = [replica.gradients for replica in replicas]
        self._lock = threading.Lock()
        self._cuts: list[Cut] = []  # on their way from the devices
        self._in_flight_step = 0  # the oldest parameters that these were computed with
        # Part of the mean in flight, to be removed from it:
        self._confirmed: UnconfirmedRound[Tensor | None] | None = None

    def rebase(self, newer: Tensor, replica: int = 0) -> None:
        self._replicas[replica].load(newer)

    def boundary(self) -> None:
        """Nothing is due."""

    def leave_out(self, replica: int) -> bool:
        self._sums[replica].drop()
        return True

    @torch.no_grad()
    def load_in_flight(self, flat: Tensor) -> None:
        if not self._sums:
            return  # a follower: nobody reads its vector, which so takes no memory
        with self._lock:
            self._cuts = [cut for each in self._sums if (cut := each.cut()) is not None]
            cuts = list(self._cuts)
        snapshots = {cut: snapshot for cut in cuts if (snapshot := _fetched(cut)) is not None}
        with self._lock:
            # Without those that have been forgotten meanwhile.
            pending = [snapshots[cut] for cut in self._cuts if cut in snapshots and snapshots[cut].samples]
            self._cuts = []
            before, unconfirmed = self.counter.in_flight_loss.weight, self.counter.unconfirmed.values()
            if pending:
                oldest = min(each.step for each in pending)
                self._in_flight_step = min(self._in_flight_step, oldest) if self.counter.in_flight else oldest
            for each in pending:
                self.counter.send(each.samples, each.loss, each.work)
            total = self.counter.in_flight_loss.weight
        if before and self._confirmed is not None and self._confirmed.held is not None:
            flat.mul_((before + self._confirmed.loss.weight) / before)
            flat.sub_(self._confirmed.held, alpha=self._confirmed.loss.weight / before)
        self._confirmed = None
        if before and pending and any(each.held is None for each in unconfirmed):
            kept = flat.clone()
            for round_ in unconfirmed:
                round_.held = kept if round_.held is None else round_.held
        if not before:
            flat.zero_()
        elif pending:
            flat.mul_(before / total)
        for each in pending if total else ():
            for mean, gradient in zip(self._replicas[0].layout.views(flat), each.gradients, strict=True):
                mean.add_(gradient, alpha=1 / total)

    def mark_unconfirmed(self, round_id: str) -> None:
        self.counter.mark_unconfirmed(round_id, None)

    def mark_applied(self) -> None:
        with self._lock:
            self.counter.mark_applied()
            self._confirmed = None

    def confirm(self, rounds: Iterable[str]) -> None:
        with self._lock:
            confirmed = self.counter.confirm(rounds)
            if confirmed is not None:
                self._confirmed = confirmed

    def drop_older_than(self, step: int) -> int:
        dropped = 0
        with self._lock:
            if self.counter.in_flight and self._in_flight_step < step:
                dropped += self.counter.in_flight
                self._drop_in_flight()
            for each in self._sums:
                dropped += each.drop_older_than(step)
        return dropped

    def forget(self) -> int:
        with self._lock:
            dropped = self.counter.in_flight + sum(cut.samples for cut in self._cuts)
            self._drop_in_flight()
            self._cuts = []
            return dropped + sum(each.drop() for each in self._sums)

    def _pending(self) -> int:
        with self._lock:
            return sum(each.samples for each in self._sums) + sum(cut.samples for cut in self._cuts)

    def _drop_in_flight(self) -> None:
        self.counter.drop_in_flight()
        self._confirmed = None


def _fetched(cut: Cut) -> Snapshot | None:
    """None if its device has failed, which is found by whoever computes on it."""
    with suppress(RuntimeError):
        return cut.fetch()
    return None
