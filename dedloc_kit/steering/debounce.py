"""What is told once it has stayed so for a while, and once only."""

from collections.abc import Hashable

SETTLED_SECONDS = 60.0
"""So long it has to stay so before it is told: peers come, go and start again."""


class Settled:
    """What was last told to be lacking, and what there is to tell."""

    def __init__(self) -> None:
        self._told: tuple[Hashable, ...] = ()
        self._seen: tuple[Hashable, ...] = ()
        self._changed = self._begun = 0.0

    def news(self, lacking: tuple[Hashable, ...], now: float) -> bool:
        """Whether that is to be told: it has stayed so, or some of it for as long while nothing is told yet."""
        if lacking and not self._seen:
            self._begun = now
        if lacking != self._seen:
            self._seen, self._changed = lacking, now
        since = self._begun if lacking and not self._told else self._changed
        if lacking == self._told or now - since < SETTLED_SECONDS:
            return False
        self._told = lacking
        return True
