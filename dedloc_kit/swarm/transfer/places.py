"""Who may have something big at the same time: a few peers, and the others in the order in which they came."""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

STALL_SECONDS = 8.0
"""Who has taken nothing for so long loses its place to whoever waits."""
TURN_SECONDS = 600.0
"""So does who has had it so long: it may come back."""
WAITING_SECONDS = 10.0
"""Who waits asks again within this time, or has gone."""
MAX_WAITING = 100


@dataclass
class Place:
    """One peer's, for all that it does at the same time."""

    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    moved: float = field(default_factory=time.monotonic)

    version: str = ""

    def begin(self, version: str) -> None:
        """This task takes something of this version; the peer's other tasks end if they are at another one, for which
        the memory would be held."""
        if self.version not in ("", version):
            for task in self.tasks:
                if task is not asyncio.current_task():
                    task.cancel()
        self.version = version
        self.touch()

    def wait(self) -> None:
        """The peer waits for us."""
        self.moved = math.inf

    def touch(self) -> None:
        """The peer has taken something, or was kept waiting by us."""
        self.moved = time.monotonic()

    @property
    def overdue(self) -> bool:
        now = time.monotonic()
        return now > self.moved + STALL_SECONDS or now > self.since + TURN_SECONDS


class Places:
    """A few places.

    :param most: how many peers have one at a time
    :param each: how many tasks a peer has in its place; one more ends its oldest
    """

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._held: dict[str, Place] = {}
        self._waiting: dict[str, tuple[float, float]] = {}
        """Since when, and when it asked last."""

    def __len__(self) -> int:
        return len(self._held)

    @contextmanager
    def place_for(self, peer: str, *, strict: bool) -> Iterator[Place | None]:
        """A place for this task of a peer; none if it has to wait.

        :param strict: whether those who are overdue have to make room
        """
        place, task = self._held.get(peer), asyncio.current_task()
        assert task is not None
        if place is None and not self._next(peer, strict):
            yield None
            return
        place = self._held.setdefault(peer, place or Place())
        if len(place.tasks) >= self._each:
            place.tasks.pop(0).cancel()  # it would not ask again if that one still worked
        place.tasks.append(task)
        try:
            yield place
        finally:
            if task in place.tasks:
                place.tasks.remove(task)
            if not place.tasks and self._held.get(peer) is place:
                del self._held[peer]

    def _next(self, peer: str, strict: bool) -> bool:
        """Is it this peer's turn? If not, it is noted down, and whoever is overdue has to go."""
        now = time.monotonic()
        self._waiting = {p: (since, last) for p, (since, last) in self._waiting.items() if now < last + WAITING_SECONDS}
        if peer in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[peer] = (self._waiting.get(peer, (now, now))[0], now)
        if strict and len(self._held) >= self._most:
            for other in [other for other, place in self._held.items() if place.overdue][: len(self._waiting)]:
                for task in self._held.pop(other).tasks:
                    task.cancel()
        first = sorted(self._waiting, key=lambda p: self._waiting[p][0])[: self._most - len(self._held)]
        if peer in first:
            del self._waiting[peer]
        return peer in first
