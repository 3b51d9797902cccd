"""How long a host may take for a call: it follows from what its calls have taken, and nobody sets it."""

import statistics
from collections import deque

FIRST_SECONDS, MIN_SECONDS, MAX_SECONDS = 10.0, 1.0, 60.0
"""Before anything is known; a machine under load may pause for a moment."""
REMEMBERED = 32
"""Calls."""
TIMES_USUAL, TIMES_LONGEST = 4.0, 2.0


class Deadline:
    """Of calls of one kind to one host."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)
        self._late = 0

    def took(self, size: int, seconds: float) -> None:
        """A call of this size was answered."""
        self._calls.append((seconds, size))
        self._late = 0

    def late(self) -> None:
        """A call was not answered in time: the next one has twice as much of it."""
        self._late += 1

    def seconds(self, size: int) -> float | None:
        """For a call of this size; none before anything is known."""
        if not self._calls:
            return None
        # A call larger than all of these takes longer in proportion. A small one tells nothing of larger ones: what it
        # takes may be the way there and back.
        taken = [seconds for seconds, _ in self._calls]
        larger = max(1.0, size / max(1, *(before for _, before in self._calls)))
        usual = larger * max(TIMES_USUAL * statistics.median(taken), TIMES_LONGEST * max(taken))
        return min(MAX_SECONDS, max(MIN_SECONDS, usual) * 2.0 ** min(self._late, 8))
