"""Which samples make up the batch of a global step: what the drivers say that they have begun for it."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.records.stages import Begun, StageOffer

GONE_SECONDS = 2.0
"""A driver whose line has broken is back by then, or gone."""
PATIENCE, LONGEST, SHORTEST, GROWTH = 300.0, 1800.0, 10.0, 1.1
"""A batch that is full by what drivers say is waited for as long as it took to fill, within the first two. The least is
halved, down to the third, with each step that was taken without what somebody claimed, and grows again with others."""

_log = logging.getLogger(__name__)


def begun_for(told: Iterable[Begun], step: int) -> int:
    """Samples."""
    return sum(begun.samples for begun in told if begun.step == step)


def wanted(told: Iterable[Begun], step: int, global_batch: int, *, closed: bool = False) -> float:
    """How many samples the batch of this step holds in all; infinity while a driver may begin more.

    :param closed: another stage has taken the step, so nothing can be begun for it any more: what a driver that has
        died since was to send is not waited for, and where that was all of it this stage takes the step with nothing
    """
    told = list(told)
    if not told or not all(begun.final for begun in told if begun.step == step):
        return math.inf
    if any(begun.step < step for begun in told):
        return math.inf  # it has not heard of this step yet
    return max(0 if closed else global_batch, begun_for(told, step))


class Patience:
    """How long what drivers claim for a step is waited for.

    A driver may claim what it never sends, and change its claim again and again. So each step has one patience,
    whatever is said in it and by however many. It passes while the batch is full by what drivers say, and from the
    beginning once another stage has taken the step. While the batch fills up nobody holds it up, however long that
    takes; and what was begun in that time comes within as much again, even where a peer is gone and all is sent anew.

    :param clock: monotonic seconds
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked = clock, 0.0
        self._step, self._state = -1, "filling"
        self._seconds = dict.fromkeys(("filling", "full", "closed"), 0.0)
        self._ended = set[str]()  # in which of these states it has
        self._least = PATIENCE

    def ended(self, step: int, *, full: bool, closed: bool = False) -> bool:
        """Whether claims for this step count no more. Ask again and again; once it has ended it stays so.

        :param full: by what drivers say, and could it all have been sent?
        :param closed: another stage has taken the step
        """
        now = self._clock()
        self._seconds[self._state] += now - self._looked
        if step != self._step:
            self._least = max(SHORTEST, self._least / 2) if self._ended else min(PATIENCE, GROWTH * self._least)
            self._step, self._seconds, self._ended = step, dict.fromkeys(self._seconds, 0.0), set()
        self._looked, self._state = now, "closed" if closed else "full" if full else "filling"
        limit = min(LONGEST, max(self._least, self._seconds["filling"]))
        self._ended.update(state for state in ("full", "closed") if self._seconds[state] >= limit)
        return ("closed" if closed else "full") in self._ended


class Batches:
    """Finds out what the batch of each step holds.

    :param clock: see `Patience`
    """

    def __init__(self, global_batch: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._global_batch, self._patience = global_batch, Patience(clock)
        self._warned = -1  # of a step

    def wanted(self, told: Iterable[Begun], step: int, *, ready: bool = True, closed: bool = False) -> float | None:
        """As the function of that name; None where claims count no more, and the step is taken with what has come.

        :param ready: has each stage somebody?
        """
        told = list(told)
        full = ready and begun_for(told, step) >= self._global_batch
        if not self._patience.ended(step, full=full, closed=closed):
            return wanted(told, step, self._global_batch, closed=closed)
        if self._warned != step:
            _log.warning(
                "drivers do not send what they have begun for step %d: it is taken with what has come", step + 1
            )
        self._warned = step
        return None


class Drivers:
    """What the drivers that live have begun, as they say on their lines and in their records.

    :param offers: of all others
    :param most: samples that a driver may claim to have begun
    """

    def __init__(self, offers: Callable[[], Mapping[str, StageOffer]], most: int) -> None:
        self._offers, self._most = offers, most
        self._lock = threading.Lock()
        self._lines: dict[str, Begun] = {}
        self._broken: dict[str, float] = {}  # when, by the clock of the directory

    def heard(self, driver: str, begun: Begun) -> None:
        with self._lock:
            self._broken.pop(driver, None)
            self._lines[driver] = begun

    def broken(self, driver: str) -> None:
        """Its line is; what it told until now, which may come only later, does not count unless it comes back."""
        with self._lock:
            if self._lines.pop(driver, None) is not None:
                self._broken[driver] = float(get_dht_time())

    def told(self) -> dict[str, Begun]:
        """By driver."""
        offers = self._offers()
        with self._lock:
            found = self._living(offers)
        return {driver: begun for driver, begun in found.items() if begun.samples <= self._most}

    def _living(self, offers: Mapping[str, StageOffer]) -> dict[str, Begun]:
        found, now = dict(self._lines), float(get_dht_time())
        for driver, offer in offers.items():
            if offer.begun is None or offer.state == "leaving":
                continue
            at = self._broken.get(driver, math.inf)
            if offer.time <= at and now > at + GONE_SECONDS:
                continue
            found[driver] = max(found.get(driver, offer.begun), offer.begun, key=lambda begun: begun.step)
        self._broken = {driver: each for driver, each in self._broken.items() if driver in offers}
        return found
