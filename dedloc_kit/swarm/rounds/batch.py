"""This peer's part of the batch: the accumulator and the vector follow what `BatchFilling` decides."""

import logging
import math
from collections.abc import Callable, Set

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS, Accumulator
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.position import Position
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.gathering.batch import BatchFilling, ChainEnd, Fix
from dedloc_kit.swarm.trust.weight import Counting

_log = logging.getLogger(__name__)


class Batch:
    """Of the next global step: what this peer computes once that is full belongs to the one after.

    :ivar filling: decides; it is used with the lock of the tracker's table
    """

    def __init__(
        self,
        state: TrainingState,
        accumulator: Accumulator,
        vector: SharedVector,
        tracker: Tracker,
        end: ChainEnd,
        counting: Counting,
        mine: Callable[[], Position],
    ) -> None:
        """
        :param vector: takes the mean of what is fixed
        :param counting: how much of what peers claim counts
        :param mine: where this peer is, and how fast
        """
        self._run, self._state = state.run, state
        self._accumulator, self._counter = accumulator, accumulator.counter
        self._vector, self._tracker, self._mine = vector, tracker, mine
        self._wanted: Callable[[], float] | None = None
        self._beside: Callable[[], int] = lambda: 0
        run, peers = state.run, tracker.peers
        self.filling = BatchFilling(
            *(peers.me, _nowhere(run.run_id), end, peers.table, run.global_batch),
            *(counting.samples, run.averaging.allow_overflow),
        )

    def holds(self, wanted: Callable[[], float], beside: Callable[[], int]) -> None:
        """Let somebody else say how many samples it has, and how many of this peer's are not among these."""
        self._wanted, self._beside = wanted, beside

    @property
    def said(self) -> int | None:
        """How many samples it has, if somebody says so and it is known."""
        return None if self._wanted is None or math.isinf(wanted := self._wanted()) else int(wanted)

    @property
    def fixed(self) -> bool:
        """Whether this peer's part is fixed."""
        return self.filling.fixed

    @property
    def samples(self) -> int:
        """This peer's part."""
        return max(0, (self._counter.in_flight if self.fixed else self._counter.samples) - self._beside())

    @property
    def ahead(self) -> bool:
        """Has this peer computed its share of the batch after this one as well? In exact training: of this one."""
        if not self.fixed or not self._run.averaging.overlap:
            return self.fixed
        with self._tracker.peers.lock:
            return self.look().is_ahead(self._counter.pending, self._tracker.peers.now())

    def look(self) -> BatchFilling:
        """What decides, as this peer is now."""
        self.filling.see(self._mine(), None if self._wanted is None else self._wanted())
        return self.filling

    def update(self, members: Set[str] | None) -> None:
        """Fix this peer's part as soon as the batch is full; open it if it is not. Not while a round has begun.

        :param members: of the group that stands, if one does
        """
        with self._tracker.peers.lock:
            filling = self.look()
            effects = filling.update(filling.mine, self._tracker.peers.now(), members)
        for effect in effects:
            if isinstance(effect, Fix):
                self._load()
                if self.samples:
                    self._tracker.report_now()

    def fix(self) -> None:
        """What this peer has computed so far is its part. Waits for the end of a round that has begun."""
        self._load()
        self.filling.fix()

    def _load(self) -> None:
        self.drop_stale()
        with self._vector.held() as flat:
            self._accumulator.load_in_flight(flat)

    def open(self) -> None:
        """What this peer computes counts in it."""
        self.filling.open(self.filling.mine)

    def drop_stale(self) -> None:
        """Gradients of old parameters are of no use; exact training takes none that is old at all."""
        staleness = MAX_STALENESS if self._run.averaging.overlap else 0
        dropped = self._accumulator.drop_older_than(max(self._state.step - staleness, self._state.rewound))
        if dropped:
            why = self._why_old(max(1, staleness))
            _log.warning("%d samples were computed on parameters that are too old; dropped%s", dropped, why)

    def _why_old(self, staleness: int) -> str:
        """What to add for who is too slow for this run: what its microbatches take, and what they may take."""
        mine, receipts = self._tracker.mine, self._state.receipts
        if mine is None or len(receipts) < 2:
            return ""
        step = (receipts[-1].time - receipts[0].time) / max(1, receipts[-1].step - receipts[0].step)
        if mine.boundary_seconds <= staleness * step:
            return ""
        return (
            f": a microbatch takes {mine.boundary_seconds:.0f} s here and a global step {step:.1f} s, and what takes "
            f"longer than {staleness * step:.0f} s hardly ever counts; let one sample go at once (--microbatch 1), or "
            "train on a faster device"
        )


def _nowhere(run_id: str) -> Position:
    """Of a peer that has not begun."""
    return Position(
        run_id=run_id,
        term=(0, ""),
        step=0,
        head="",
        incarnation=0,
        samples=0,
        samples_per_second=0.0,
        boundary_seconds=0.0,
        time=0.0,
    )
