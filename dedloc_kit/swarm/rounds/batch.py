"""Which of this peer's samples are in the batch of the next global step: what it computes once that is full belongs to
the one after."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.learning.train.flat import SharedVector
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS, Accumulator
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.trust.weight import Counting

QUIET_SECONDS = 6.0
"""Who computes has told something by then. What the others seem to have computed has been told by then, or is not
there."""
SHORTEST, LATE = 0.001, 0.2
"""Seconds that a microbatch takes at least, and by which part of the usual time it may be late."""
DISTRUSTED_STEPS = 8
"""Global steps for which only what is told counts, after that."""

_log = logging.getLogger(__name__)


class Batch:
    """This peer's part of the batch that fills up.

    Nobody sees at once that the batch is full, and until the group stands some time passes. So everyone fixes its part
    when the batch is full by what the others told and have surely computed since, and the round begins when all of it
    is told. A part that was fixed too early is open again, and takes in what was computed meanwhile; so is one whose
    round has ended, whether it has counted or not. With `averaging.allow_overflow` it is fixed when the round begins.

    :param vector: takes the mean of what is fixed
    :param counting: how much of what is told counts
    """

    def __init__(
        self,
        state: TrainingState,
        accumulator: Accumulator,
        vector: SharedVector,
        tracker: Tracker,
        counting: Counting,
    ) -> None:
        self._run, self._state, self._counting = state.run, state, counting
        self._accumulator, self._counter = accumulator, accumulator.counter
        self._vector, self._tracker = vector, tracker
        self._wanted: Callable[[], float] | None = None
        self._beside: Callable[[], int] = lambda: 0
        self.fixed = False
        self._fixed_at = 0.0
        self._distrusted_until = 0  # a global step

    def holds(self, wanted: Callable[[], float], beside: Callable[[], int]) -> None:
        """Let somebody else say how many samples it has, and how many of this peer's are not among these."""
        self._wanted, self._beside = wanted, beside

    @property
    def is_said(self) -> bool:
        """Does somebody say how many samples it has? Then no more are computed than these."""
        return self._wanted is not None

    @property
    def said(self) -> int | None:
        """How many that are, if somebody says so and it is known."""
        return None if self._wanted is None or math.isinf(wanted := self._wanted()) else int(wanted)

    @property
    def follows(self) -> bool:
        """May it be that others know that it is full, and this peer does not?"""
        return self._wanted is None or math.isinf(self._wanted())

    @property
    def wanted(self) -> float:
        """Samples of all peers; infinity while that is not known yet."""
        return self._run.global_batch if self._wanted is None else self._wanted()

    @property
    def samples(self) -> int:
        """This peer's part."""
        return max(0, (self._counter.in_flight if self.fixed else self._counter.samples) - self._beside())

    @property
    def ahead(self) -> bool:
        """Has this peer computed its share of the batch after this one as well? In exact training: of this one."""
        averaging = self._run.averaging
        if not self.fixed or not averaging.overlap:
            return self.fixed
        if averaging.allow_overflow:
            return False
        mine = self._own_rate()
        rate = mine + sum(told.samples_per_second for told in self._tracker.others().values())
        return mine > 0 and self._counter.pending * rate >= self._run.global_batch * mine

    def watch(self, in_sync: Mapping[str, Progress], late: Iterable[Progress]) -> None:
        """Fix this peer's part as soon as the batch is full; open it if it is not. Not while a round has begun.

        :param in_sync: whose samples count
        :param late: who is about to have finished the last round: it has computed about as long since as this peer
        """
        if self._run.averaging.allow_overflow:
            return
        told, now = self._counting.samples(self.samples, in_sync), time.monotonic()
        wanted = self.wanted
        # Where it is known what the batch holds nobody has to guess.
        trusted = self._state.step >= self._distrusted_until and self._wanted is None
        untold = self._untold(in_sync.values(), late) if trusted else 0.0
        if told + untold < wanted:
            self.open()
        elif not self.fixed:
            self.fix()
            self._fixed_at = now
            if self.samples:
                self._tracker.report_now()
        elif told < wanted and now > self._fixed_at + QUIET_SECONDS:
            self._distrusted_until = self._state.step + DISTRUSTED_STEPS

    def fix(self) -> None:
        """What this peer has computed so far is its part. Waits for the end of a round that has begun."""
        self.drop_stale()
        with self._vector.held() as flat:
            self._accumulator.load_in_flight(flat)
        self.fixed = True

    def open(self) -> None:
        """What this peer computes counts in it."""
        self.fixed = False

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

    def _untold(self, in_sync: Iterable[Progress], late: Iterable[Progress]) -> float:
        """What the others have surely computed and not told yet."""
        mine = self._own_rate()
        seconds = self.samples / mine if mine else 0.0
        return sum(map(self._since, in_sync)) + sum(progress.samples_per_second * seconds for progress in late)

    def _since(self, progress: Progress) -> float:
        """Samples of the microbatches that a peer has finished since it told this, if it is as fast as before."""
        now, each = float(get_dht_time()), max(SHORTEST, progress.boundary_seconds)
        if progress.fixed or now < progress.time or not self._tracker.looked - progress.time <= QUIET_SECONDS:
            return 0.0
        then, by_now = (max(0, math.floor((t - progress.computed) / each - LATE)) for t in (progress.time, now))
        return progress.samples_per_second * each * (by_now - then)

    def _own_rate(self) -> float:
        return self._tracker.mine.samples_per_second if self._tracker.mine is not None else 0.0
