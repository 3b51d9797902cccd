"""What goes wrong in the swarm and is dealt with: counted in full, told seldom enough to be read."""

import logging
import threading
from collections import Counter
from typing import NamedTuple

MAX_REASONS = 20
"""That are told apart: a reason may quote what a stranger wrote."""
OTHER_REASONS = "for other reasons"
MAX_UNTAKEN = 100

_log = logging.getLogger(__name__)


class FailedRound(NamedTuple):
    step: int
    """The global step that it was to lead to."""
    text: str


class Rejections:
    """How often something was ignored, by reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: Counter[str] = Counter()
        self._untaken: Counter[str] = Counter()

    def add(self, reason: str, times: int = 1) -> tuple[str, int]:
        """The reason under which it is counted, and how often that was seen so far."""
        with self._lock:
            if reason not in self._all and len(self._all) >= MAX_REASONS:
                reason = OTHER_REASONS
            self._all[reason] += times
            self._untaken[reason] += times
            return reason, self._all[reason]

    def all(self) -> Counter[str]:
        """Those since the beginning."""
        with self._lock:
            return self._all.copy()

    def drain(self) -> Counter[str]:
        """Those since the last call."""
        with self._lock:
            untaken, self._untaken = self._untaken, Counter()
            return untaken


class Incidents:
    """Takes what any thread reports, until somebody asks for it, and warns; of what is repeated only now and then."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failed: list[FailedRound] = []
        self._rejections = Rejections()

    def failed(self, step: int, reason: str) -> None:
        """A round that had begun has failed."""
        with self._lock:
            self._failed = [*self._failed, FailedRound(step, reason)][-MAX_UNTAKEN:]
        _log.warning("a round failed and is tried again: %s", reason)

    def reject(self, reason: str, times: int = 1) -> None:
        """Something from the network was ignored."""
        reason, count = self._rejections.add(reason, times)
        if count.bit_length() > (count - times).bit_length():  # the first, second, fourth, eighth ... time
            _log.warning("a record was ignored (%d times so far): %s", count, reason)

    def drain(self) -> tuple[list[FailedRound], Counter[str]]:
        """The rounds that failed since the last call, and how many records were ignored for which reason."""
        with self._lock:
            failed, self._failed = self._failed, []
        return failed, self._rejections.drain()
