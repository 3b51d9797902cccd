"""What goes wrong in the swarm and is dealt with: counted in full, told seldom enough to be read."""

import threading
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

MAX_REASONS = 20
"""That are told apart: a reason may quote what a stranger wrote."""
OTHER_REASONS = "for other reasons"
MAX_UNTAKEN = 100


class FailedRound(NamedTuple):
    step: int
    """The global step that it was to lead to."""
    text: str


class Incidents:
    """Takes what any thread reports, until somebody asks for it.

    :param warn: told in plain words, of what is repeated only now and then
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self.warn = warn
        self._lock = threading.Lock()
        self._failed: list[FailedRound] = []
        self._rejected: Counter[str] = Counter()
        self._untaken: Counter[str] = Counter()

    def failed(self, step: int, reason: str) -> None:
        """A round that had begun has failed."""
        with self._lock:
            self._failed = [*self._failed, FailedRound(step, reason)][-MAX_UNTAKEN:]
        self.warn(f"a round failed and is tried again: {reason}")

    def reject(self, reason: str, times: int = 1) -> None:
        """Something from the network was ignored."""
        with self._lock:
            if reason not in self._rejected and len(self._rejected) >= MAX_REASONS:
                reason = OTHER_REASONS
            before = self._rejected[reason]
            self._rejected[reason] = count = before + times
            self._untaken[reason] += times
        if count.bit_length() > before.bit_length():  # the first, second, fourth, eighth ... time
            self.warn(f"a record was ignored ({count} times so far): {reason}")

    def take(self) -> tuple[list[FailedRound], Counter[str]]:
        """The rounds that failed since the last call, and how many records were ignored for which reason."""
        with self._lock:
            failed, rejected = self._failed, self._untaken
            self._failed, self._untaken = [], Counter()
            return failed, rejected
