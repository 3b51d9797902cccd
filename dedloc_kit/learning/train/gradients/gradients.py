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
from dedloc_kit.learning.train.gradients.accumulator import Doubt, Tally


class Gradients:
    """Averages the sums of gradients of several replicas; what is outgoing is the mean of them.

    :param replicas: none for a follower
    """

    def __init__(self, replicas: Sequence[FlatModel]) -> None:
        # A doubt holds the mean of what was outgoing; None as long as that is all that is outgoing.
        self.tally = Tally[Tensor | None](self._fresh)
        self._replicas = replicas
        self._sums = [replica.gradients for replica in replicas]
        self._lock = threading.Lock()
        self._cuts: list[Cut] = []  # on their way from the devices
        self._outgoing_step = 0  # the oldest parameters that these were computed with
        self._counted: Doubt[Tensor | None] | None = None  # part of the outgoing mean that has to come out of it again

    def rebase(self, newer: Tensor, replica: int = 0) -> None:
        self._replicas[replica].load(newer)

    def boundary(self) -> None:
        """Nothing is due."""

    def leave_out(self, replica: int) -> bool:
        self._sums[replica].drop()
        return True

    @torch.no_grad()
    def load_outgoing(self, flat: Tensor) -> None:
        if not self._sums:
            return  # of who never has any nobody reads the vector, which so takes no memory
        with self._lock:
            self._cuts = [cut for each in self._sums if (cut := each.cut()) is not None]
            cuts = list(self._cuts)
        snapshots = {cut: snapshot for cut in cuts if (snapshot := _fetched(cut)) is not None}
        with self._lock:
            # Without those that have been forgotten meanwhile.
            fresh = [snapshots[cut] for cut in self._cuts if cut in snapshots and snapshots[cut].samples]
            self._cuts = []
            before, doubts = self.tally.outgoing_loss.weight, self.tally.doubts.values()
            if fresh:
                oldest = min(each.step for each in fresh)
                self._outgoing_step = min(self._outgoing_step, oldest) if self.tally.outgoing else oldest
            for each in fresh:
                self.tally.send(each.samples, each.loss, each.work)
            total = self.tally.outgoing_loss.weight
        if before and self._counted is not None and self._counted.held is not None:
            flat.mul_((before + self._counted.loss.weight) / before)
            flat.sub_(self._counted.held, alpha=self._counted.loss.weight / before)
        self._counted = None
        if before and fresh and any(doubt.held is None for doubt in doubts):
            kept = flat.clone()
            for doubt in doubts:
                doubt.held = kept if doubt.held is None else doubt.held
        if not before:
            flat.zero_()
        elif fresh:
            flat.mul_(before / total)
        for each in fresh if total else ():
            for mean, gradient in zip(self._replicas[0].layout.views(flat), each.gradients, strict=True):
                mean.add_(gradient, alpha=1 / total)

    def doubt(self, round_id: str) -> None:
        self.tally.doubt(round_id, None)

    def count_outgoing(self) -> None:
        with self._lock:
            self.tally.count()
            self._counted = None

    def settle(self, rounds: Iterable[str]) -> None:
        with self._lock:
            counted = self.tally.settle(rounds)
            if counted is not None:
                self._counted = counted

    def drop_older_than(self, step: int) -> int:
        dropped = 0
        with self._lock:
            if self.tally.outgoing and self._outgoing_step < step:
                dropped += self.tally.outgoing
                self._drop_outgoing()
            for each in self._sums:
                dropped += each.drop_older_than(step)
        return dropped

    def forget(self) -> int:
        with self._lock:
            dropped = self.tally.outgoing + sum(cut.samples for cut in self._cuts)
            self._drop_outgoing()
            self._cuts = []
            return dropped + sum(each.drop() for each in self._sums)

    def _fresh(self) -> int:
        with self._lock:
            return sum(each.samples for each in self._sums) + sum(cut.samples for cut in self._cuts)

    def _drop_outgoing(self) -> None:
        self.tally.drop_outgoing()
        self._counted = None


def _fetched(cut: Cut) -> Snapshot | None:
    """None if its device has failed, which is found by whoever computes on it."""
    with suppress(RuntimeError):
        return cut.fetch()
    return None
