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
from statistics import median

AHEAD, MIN_AHEAD = 12, 4
"""Parts that have not come, as far as a member knows: at least in all, and at least for each reducer."""
MAX_WAIT = 1.0
"""Seconds until a member sends its next part in any case: who sends nothing for long counts as gone."""


class Meter:
    """How fast what goes to some peers comes there, as they say: of each the bytes that came over the seconds in which
    any were on their way."""

    def __init__(self, peers: int) -> None:
        self._under_way: list[deque[tuple[float, int]]] = [deque() for _ in range(peers)]
        """Since when, and how many bytes, of what has not come."""
        self._bytes, self._busy_seconds, self._last_arrival = [0] * peers, [0.0] * peers, [0.0] * peers

    def sent(self, peer: int, size: int) -> None:
        """So many bytes go there now."""
        self._under_way[peer].append((time.monotonic(), size))

    def came(self, peer: int) -> bool:
        """It says that the next of them have come; returns whether any were on their way."""
        if not self._under_way[peer]:
            return False
        (began, size), now = self._under_way[peer].popleft(), time.monotonic()
        self._busy_seconds[peer] += max(0.0, now - max(began, self._last_arrival[peer]))
        self._last_arrival[peer] = now
        self._bytes[peer] += size
        return True

    def count(self, peer: int) -> int:
        """Messages that are on their way there."""
        return len(self._under_way[peer])

    def stands_still(self, peer: int) -> bool:
        """Has the next of them been on its way for `MAX_WAIT`?"""
        under_way = self._under_way[peer]
        return bool(under_way) and time.monotonic() > max(under_way[0][0], self._last_arrival[peer]) + MAX_WAIT

    def gone(self, peer: int) -> int:
        """Nothing more comes there; returns of how many messages that is now known."""
        count = len(self._under_way[peer])
        self._under_way[peer].clear()
        return count

    @property
    def empty(self) -> bool:
        """Has all come that was sent?"""
        return not any(self._under_way)

    @property
    def rates(self) -> list[float]:
        """Bytes per second of each to whom anything has come."""
        return [size / busy for size, busy in zip(self._bytes, self._busy_seconds, strict=True) if busy]

    @property
    def rate(self) -> float:
        """Bytes per second to all of these together; 0 before anything has come.

        The median stands for all: so a few who say that all has come at once, or late, change little.
        """
        rates = self.rates
        return len(rates) * median(rates) if rates else 0.0


class SendWindow:
    """What a member has sent to its reducers, and what of it has come.

    :param parts: how many parts go to each reducer; 0 for peers that are none, and for the member itself
    """

    def __init__(self, parts: Sequence[int]) -> None:
        self._parts, self._reducers = list(parts), _some(parts)
        self._ahead = max(AHEAD, MIN_AHEAD * len(self._reducers))
        self._sent = [0] * len(parts)
        self._meter = Meter(len(parts))
        self._called = 0
        """Of parts that go as soon as whoever was called sends them."""
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @property
    def rate(self) -> float:
        """Bytes per second to all reducers while any were on their way; 0 before all have come."""
        return sum(self._meter.rates) if self._meter.empty else 0.0

    @property
    def empty(self) -> bool:
        """Has all come that was sent?"""
        return self._meter.empty

    async def room(self, reducer: int) -> None:
        """Wait until the next part for this reducer may go; the caller then says `sent` at once."""
        turn = self._waiting[reducer] = asyncio.get_running_loop().create_future()
        try:
            self._call()
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_WAIT):
                    await turn
        finally:
            del self._waiting[reducer]
            if turn.done() and not turn.cancelled():
                self._called -= 1

    def _call(self) -> None:
        """Those whose turn it is may send; nobody else is woken, for there are as many who wait as reducers.

        A reducer that has said nothing of its parts for long holds up nobody but itself.
        """
        moving = [reducer for reducer in self._reducers if not self._meter.stands_still(reducer)]
        least = min(map(self._progress, moving), default=1.0)
        ahead = self._called + sum(map(self._meter.count, moving))
        for reducer, turn in self._waiting.items():
            if ahead >= self._ahead:
                return
            if not turn.done() and reducer in moving and self._progress(reducer) <= least:
                ahead += 1
                self._called += 1
                turn.set_result(None)

    def sent(self, reducer: int, size: int) -> None:
        """A part, of so many bytes, goes now."""
        self._meter.sent(reducer, size)
        self._sent[reducer] += 1
        self._call()

    def came(self, reducer: int) -> None:
        """It says that the next part has come."""
        if self._meter.came(reducer):
            self._call()

    def deal(self, parts: Sequence[int]) -> None:
        """So many parts go to each reducer from now on, those that went there before included."""
        self._parts, self._reducers = list(parts), _some(parts)
        self._call()

    def gone(self, reducer: int) -> None:
        """Nothing more goes there, and nobody waits for what went."""
        self._meter.gone(reducer)
        self.deal([0 if number == reducer else count for number, count in enumerate(self._parts)])

    def _progress(self, reducer: int) -> float:
        parts = self._parts[reducer]
        return self._sent[reducer] / parts if parts else 1.0


def _some(parts: Sequence[int]) -> list[int]:
    """Those that reduce anything."""
    return [number for number, count in enumerate(parts) if count]
