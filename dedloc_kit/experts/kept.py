"""What forward calls leave until their backward calls, bounded in bytes and time."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dedloc_kit.experts.refused import Refused

T = TypeVar("T")
_OVERHEAD = 1024
"""Bytes that the smallest takes."""


@dataclass(frozen=True)
class _Entry(Generic[T]):
    value: T
    size: int
    until: float


class Kept(Generic[T]):
    """By ticket and by who sent it. Where there is no room, the sender with the most loses its oldest.

    So whoever sends a flood takes nothing from those who send less. Not for several threads.
    """

    def __init__(self, room: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._room, self._seconds, self._clock = room, seconds, clock
        self._tickets = itertools.count(1)
        self._entries: dict[str, dict[int, _Entry[T]]] = {}
        self._sizes: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(self._sizes.values())

    def put(self, sender: str, value: T, size: int) -> int:
        """Keep something of so many bytes; returns its ticket. Raises Refused if there can be no room for it."""
        self._expire()
        size += _OVERHEAD
        if size > self._room:
            raise Refused("large")
        ticket = next(self._tickets)
        self._entries.setdefault(sender, {})[ticket] = _Entry(value, size, self._clock() + self._seconds)
        self._sizes[sender] = self._sizes.get(sender, 0) + size
        while self.size > self._room:
            most = max(self._sizes, key=lambda each: self._sizes[each])
            oldest = next(iter(self._entries[most]))
            if oldest == ticket:  # it alone takes more than anybody else has, and the others are not to lose for it
                self._take(sender, ticket)
                raise Refused("large")
            self._take(most, oldest)
        return ticket

    def take(self, sender: str, ticket: object) -> T:
        """Give out what was kept for a sender, once; raises Refused if there is nothing (any more)."""
        self._expire()
        if not isinstance(ticket, int) or ticket not in self._entries.get(sender, ()):
            raise Refused("forgotten")
        return self._take(sender, ticket)

    def _expire(self) -> None:
        now = self._clock()
        for sender, entries in list(self._entries.items()):
            for ticket in [ticket for ticket, entry in entries.items() if entry.until < now]:
                self._take(sender, ticket)

    def _take(self, sender: str, ticket: int) -> T:
        entry = self._entries[sender].pop(ticket)
        self._sizes[sender] -= entry.size
        if not self._entries[sender]:
            del self._entries[sender], self._sizes[sender]
        return entry.value
