"""Which samples make up the batch of a global step: what the drivers say that they have begun for it."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.records.stages import Begun, StageOffer

GONE_SECONDS = 2.0
"""A driver whose line has broken is back by then, or gone."""
PATIENCE = 300.0
"""Whoever has said the same for so long is not waited for any more, for it may claim what it never sends."""


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
        self._since: dict[str, tuple[Begun, float]] = {}  # what each says, and since when

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
        offers, now = self._offers(), time.monotonic()
        with self._lock:
            found = self._living(offers)
            said, self._since = self._since, {}
            for driver, begun in found.items():
                before, since = said.get(driver, (begun, now))
                self._since[driver] = begun, since if before == begun else now
            return {
                driver: begun
                for driver, begun in found.items()
                if begun.samples <= self._most and now < self._since[driver][1] + PATIENCE
            }

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
