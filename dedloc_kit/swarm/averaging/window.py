"""How far a member of an all-reduce is ahead of its reducers.

What is sent at once only fills buffers on the way, and where several members send to one, its line loses packets. So
gradients go as reducers say that they came, to all reducers in step: more of them are on their way to a reducer that
takes longer, and all reducers are done at the same time. How fast a line is shows in how long a part is on its way.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

AHEAD, MIN_AHEAD = 12, 4
"""Parts that have not come, as far as a member knows: at least in all, and at least for each reducer."""
MAX_WAIT = 1.0
"""Seconds until a member sends its next part in any case: who sends nothing for long counts as gone."""


class SendWindow:
    """What a member has sent to its reducers, and what of it has come.

    :param parts: how many parts go to each reducer; 0 for peers that are none, and for the member itself
    """

    def __init__(self, parts: Sequence[int]) -> None:
        self._parts = list(parts)
        self._ahead = max(AHEAD, MIN_AHEAD * sum(map(bool, parts)))
        self._sent = [0] * len(parts)
        self._under_way: list[deque[float]] = [deque() for _ in parts]  # since when, for parts that have not come
        self._news = asyncio.Event()
        self._bytes = [0] * len(parts)
        self._busy_seconds = [0.0] * len(parts)  # in which a part was on its way
        self._last_arrival = [0.0] * len(parts)

    @property
    def rate(self) -> float:
        """Bytes per second to all reducers while any were on their way; 0 before all have come."""
        if any(self._under_way):
            return 0.0
        return sum(size / busy for size, busy in zip(self._bytes, self._busy_seconds, strict=True) if busy)

    @property
    def empty(self) -> bool:
        """Has all come that was sent?"""
        return not any(self._under_way)

    async def room(self, reducer: int) -> None:
        """Wait until the next part for this reducer may go."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_WAIT):
                while sum(map(len, self._under_way)) >= self._ahead or self._progress(reducer) > min(
                    map(self._progress, range(len(self._parts)))
                ):
                    self._news.clear()
                    await self._news.wait()

    def sent(self, reducer: int, size: int) -> None:
        """A part, of so many bytes, goes now."""
        self._under_way[reducer].append(time.monotonic())
        self._sent[reducer] += 1
        self._bytes[reducer] += size
        self._news.set()

    def came(self, reducer: int) -> None:
        """It says that the next part has come."""
        if not self._under_way[reducer]:
            return
        began, now = self._under_way[reducer].popleft(), time.monotonic()
        self._busy_seconds[reducer] += max(0.0, now - max(began, self._last_arrival[reducer]))
        self._last_arrival[reducer] = now
        self._news.set()

    def deal(self, parts: Sequence[int]) -> None:
        """So many parts go to each reducer from now on, those that went there before included."""
        self._parts = list(parts)
        self._news.set()

    def gone(self, reducer: int) -> None:
        """Nothing more goes there, and nobody waits for what went."""
        self._under_way[reducer].clear()
        self._parts[reducer] = 0
        self._news.set()

    def _progress(self, reducer: int) -> float:
        parts = self._parts[reducer]
        return self._sent[reducer] / parts if parts else 1.0
