"""What a peer gathers for a global step while it computes, and how many samples that stands for."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from dedloc_kit.learning.train.gradient_sum import LossSum

T = TypeVar("T")
MAX_STALENESS = 4
"""Global steps by which a gradient may be late. One is usual; more happens after a fault or with a slow device."""


@dataclass
class Doubt(Generic[T]):
    """What was outgoing when a round failed here, which may have succeeded for others."""

    samples: int
    loss: LossSum
    lines: int
    """Of work: so many, from the first one on."""
    held: T
    """What takes it out of what is outgoing."""


class Tally(Generic[T]):
    """Samples are `fresh` while they are gathered, then `outgoing` from the snapshot for a round until they are
    `counted` in a finished global step.

    What a failed round did not average stays outgoing and goes into the next one, together with what is fresh by
    then. A failed round may have succeeded for others, though: until this peer has learned which, it is in doubt.

    :param fresh: tells of how many samples the sums on the devices are, at any time and in any thread. The newest
        microbatch of a device counts before it is known to be finite; it is known when a sum is copied from there.
    """

    def __init__(self, fresh: Callable[[], int]) -> None:
        self._fresh = fresh
        self.outgoing = self.counted = 0
        self.outgoing_loss = LossSum()
        self.work: tuple[bytes, ...] = ()
        """What the outgoing samples are, a line for each microbatch; nothing where nobody asks for that."""
        self.doubts: dict[str, Doubt[T]] = {}

    @property
    def fresh(self) -> int:
        """Samples that are gathered."""
        return self._fresh()

    @property
    def samples(self) -> int:
        """Samples that are not yet part of a global step."""
        return self.fresh + self.outgoing

    @property
    def loss(self) -> float | None:
        """The mean of what is outgoing; none if nothing is."""
        return self.outgoing_loss.total / self.outgoing_loss.weight if self.outgoing_loss.weight else None

    def go_on(self, counted: int) -> None:
        """With a session in which so many samples have counted."""
        self.counted = counted

    def send(self, samples: int, loss: LossSum, work: Iterable[bytes] = ()) -> None:
        """These samples are outgoing now.

        :param work: what they are
        """
        self.outgoing, self.outgoing_loss = self.outgoing + samples, self.outgoing_loss + loss
        self.work = (*self.work, *work)

    def doubt(self, round_id: str, held: T) -> None:
        """This round failed here; the outgoing samples may have counted for others."""
        self.doubts[round_id] = Doubt(self.outgoing, self.outgoing_loss, len(self.work), held)

    def count(self) -> None:
        """The outgoing samples are part of a global step."""
        self.counted += self.outgoing
        self.drop_outgoing()

    def settle(self, rounds: Iterable[str]) -> Doubt[T] | None:
        """These rounds have led to the swarm's state: if one was in doubt, what was in it has counted."""
        counted = next((self.doubts[round_id] for round_id in rounds if round_id in self.doubts), None)
        if counted is not None:
            self.counted += counted.samples
            left, loss = self.outgoing - counted.samples, self.outgoing_loss - counted.loss
            work = self.work[counted.lines :]
            self.drop_outgoing()
            if left:
                self.outgoing, self.outgoing_loss, self.work = left, loss, work
        return counted

    def drop_outgoing(self) -> None:
        self.outgoing, self.outgoing_loss, self.work = 0, LossSum(), ()
        self.doubts.clear()


class Accumulator(Protocol):
    """What the replicas of a host have added up, one for each of its devices. One thread calls `boundary`, `rebase` and
    `leave_out`, another one may do the rest.
    """

    @property
    def tally(self) -> Tally[Any]: ...

    def rebase(self, newer: Tensor, replica: int = 0) -> None:
        """Newer shared parameters have come: make them those of a replica.

        :param newer: float32 [layout.size] on the CPU
        """

    def boundary(self) -> None:
        """What the replicas computed side by side has been added."""

    def leave_out(self, replica: int) -> bool:
        """A replica's device has failed: what it added since the last snapshot cannot be had any more.

        Returns whether this host can go on without it.
        """

    def load_outgoing(self, flat: Tensor) -> None:
        """What is fresh becomes outgoing: `flat` (on the CPU) holds what was outgoing, and takes the new mean. Waits
        once for each device; from then on what is outgoing is exactly what is claimed."""

    def doubt(self, round_id: str) -> None:
        """As `Tally.doubt`; so the next two."""

    def count_outgoing(self) -> None: ...

    def settle(self, rounds: Iterable[str]) -> None: ...

    def drop_older_than(self, step: int) -> int:
        """Forget what is of no use since it was computed before this step; returns how many samples that were."""

    def forget(self) -> int:
        """Drop all that has not counted, of whatever age; returns how many samples that were."""
