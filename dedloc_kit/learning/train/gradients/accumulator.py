"""The samples of a peer on their way into a global step, and the interface of what accumulates their gradients."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor

from dedloc_kit.learning.train.gradient_sum import LossSum

T = TypeVar("T")
MAX_STALENESS = 4
"""Global steps by which a gradient may be late. One is usual; more happens after a fault or with a slow device."""


@dataclass
class UnconfirmedRound(Generic[T]):
    """What was in flight when a round failed on this peer. The round may have succeeded for others."""

    samples: int
    loss: LossSum
    lines: int
    """Of work: the number of lines, from the first one on."""
    held: T
    """What removes it from what is in flight."""


class SampleCounter(Generic[T]):
    """Counts samples in three states: `pending` while they are accumulated, `in_flight` from the snapshot for a round
    on, `applied` when they are part of a finished global step.

    Samples of a failed round stay in flight, and the next round takes them together with what is pending by then. A
    failed round is unconfirmed until this peer learns whether it succeeded for others.

    :param pending: returns the samples in the sums on the devices, at any time and in any thread. The newest microbatch
        of a device counts before it is known to be finite; that is known when a sum is copied from the device.
    """

    def __init__(self, pending: Callable[[], int]) -> None:
        self._pending = pending
        self.in_flight = self.applied = 0
        self.in_flight_loss = LossSum()
        self.work: tuple[bytes, ...] = ()
        """The samples in flight, a line for each microbatch; empty where nobody asks for it."""
        self.unconfirmed: dict[str, UnconfirmedRound[T]] = {}

    @property
    def pending(self) -> int:
        return self._pending()

    @property
    def samples(self) -> int:
        """Samples that are not yet part of a global step."""
        return self.pending + self.in_flight

    @property
    def loss(self) -> float | None:
        """The mean loss in flight; none if nothing is."""
        return self.in_flight_loss.total / self.in_flight_loss.weight if self.in_flight_loss.weight else None

    def go_on(self, applied: int) -> None:
        """Continue a session in which this number of samples was applied."""
        self.applied = applied

    def send(self, samples: int, loss: LossSum, work: Iterable[bytes] = ()) -> None:
        """Add samples to those in flight.

        :param work: their lines
        """
        self.in_flight, self.in_flight_loss = self.in_flight + samples, self.in_flight_loss + loss
        self.work = (*self.work, *work)

    def mark_unconfirmed(self, round_id: str, held: T) -> None:
        """This round failed here; others may have applied the samples in flight."""
        self.unconfirmed[round_id] = UnconfirmedRound(self.in_flight, self.in_flight_loss, len(self.work), held)

    def mark_applied(self) -> None:
        """The samples in flight are part of a global step."""
        self.applied += self.in_flight
        self.drop_in_flight()

    def confirm(self, rounds: Iterable[str]) -> UnconfirmedRound[T] | None:
        """These rounds led to the swarm's state: if one of them was unconfirmed, its samples are applied."""
        confirmed = next((self.unconfirmed[round_id] for round_id in rounds if round_id in self.unconfirmed), None)
        if confirmed is not None:
            self.applied += confirmed.samples
            left, loss = self.in_flight - confirmed.samples, self.in_flight_loss - confirmed.loss
            work = self.work[confirmed.lines :]
            self.drop_in_flight()
            if left:
                self.in_flight, self.in_flight_loss, self.work = left, loss, work
        return confirmed

    def drop_in_flight(self) -> None:
        self.in_flight, self.in_flight_loss, self.work = 0, LossSum(), ()
        self.unconfirmed.clear()


class Accumulator(Protocol):
    """Accumulates what the replicas of a host compute, one replica for each device. One thread calls `boundary`,
    `rebase` and `leave_out`; another one may call the rest.
    """

    @property
    def counter(self) -> SampleCounter[Any]: ...

    def rebase(self, newer: Tensor, replica: int = 0) -> None:
        """Load newer shared parameters into a replica.

        :param newer: float32 [layout.size] on the CPU
        """

    def boundary(self) -> None:
        """Called when all that the replicas computed side by side has been added."""

    def leave_out(self, replica: int) -> bool:
        """Drop a replica whose device has failed; what it added since the last snapshot is lost.

        Returns whether this host can go on without it.
        """

    def load_in_flight(self, flat: Tensor) -> None:
        """Move what is pending into flight: `flat`, on the CPU, holds the mean in flight and takes the new one. Waits
        once for each device; from then on the samples in flight are exactly those that are claimed."""

    def mark_unconfirmed(self, round_id: str) -> None:
        """As `SampleCounter.mark_unconfirmed`; so the next two."""

    def mark_applied(self) -> None: ...

    def confirm(self, rounds: Iterable[str]) -> None: ...

    def drop_older_than(self, step: int) -> int:
        """Drop what was computed before this step, which is of no use any more; returns the number of samples."""

    def forget(self) -> int:
        """Drop all that is not applied, of whatever age; returns the number of samples."""
