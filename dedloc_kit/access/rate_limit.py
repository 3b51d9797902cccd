"""How often something is done for those who ask: nobody can use up what is there for all."""

import time
from collections import Counter

MINUTE = 60.0


class PerMinute:
    """So many times in a minute for each, and for all together.

    :param each: for one of them, by any name
    :param in_all: also bounds how many names are remembered
    """

    def __init__(self, each: int, in_all: int) -> None:
        self._each, self._in_all = each, in_all
        self._since, self._all = time.monotonic(), 0
        self._taken: Counter[str] = Counter()

    def allows(self, name: str) -> bool:
        """One more for this one, unless its share or everybody's is used up."""
        now = time.monotonic()
        if now >= self._since + MINUTE:
            self._since, self._all = now, 0
            self._taken.clear()
        if self._taken[name] >= self._each or self._all >= self._in_all:
            return False
        self._taken[name] += 1
        self._all += 1
        return True
