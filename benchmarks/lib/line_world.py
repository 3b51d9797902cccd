"""Home lines in simulated time, one queue of events for a thousand peers; the model of `lines.py` without asyncio.

A line carries what goes to, or comes from, several peers by turns of 64 KB. Beside data, what is no longer than a turn
goes first, and what is longer takes turns as another peer's data would. Who dies falls silent.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

DELAY_SECONDS = 0.03
"""From one peer to another."""
TURN_BYTES = 2**16


class Tag:
    """Of parcels that may be dropped before they are on their way."""

    __slots__ = ("dropped",)

    def __init__(self) -> None:
        self.dropped = False


class Parcel(NamedTuple):
    source: str
    target: str
    message: Any
    tag: Tag | None


class World:
    """:param rates: bytes per second of each peer, up and down"""

    def __init__(self, rates: Mapping[str, float]) -> None:
        self.now = 0.0
        self.receivers: dict[str, Callable[[str, Any], None]] = {}
        self.dead: set[str] = set()
        self.sent: Counter[str] = Counter()
        self.control: Counter[str] = Counter()
        """Of `sent`, what is no data."""
        self.events = 0
        self._up = {peer: _Way(self, rate, self._leave) for peer, rate in rates.items()}
        self._down = {peer: _Way(self, rate, self._deliver) for peer, rate in rates.items()}
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        self.events += 1
        heapq.heappush(self._queue, (max(when, self.now), self.events, call, args))

    def after(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def run(self, until: float, stop: Callable[[], bool]) -> None:
        queue = self._queue
        while queue and queue[0][0] <= until and not stop():
            self.now, _, call, args = heapq.heappop(queue)
            call(*args)

    def send(
        self, source: str, target: str, message: Any, size: int, bulk: bool = False, tag: Tag | None = None
    ) -> None:
        if source in self.dead or target in self.dead:
            return
        self.sent[source] += size
        if not bulk:
            self.control[source] += size
        parcel, way = Parcel(source, target, message, tag), self._up[source]
        for begin in range(0, size, TURN_BYTES):
            end = begin + TURN_BYTES
            way.put((target, bulk), min(size, end) - begin, parcel, end >= size)

    def kill(self, peer: str) -> None:
        self.dead.add(peer)

    def _leave(self, pieces: "list[_Piece]") -> None:
        self.after(DELAY_SECONDS, self._arrive, pieces)

    def _arrive(self, pieces: "list[_Piece]") -> None:
        for key, size, parcel, last in pieces:
            if parcel.source not in self.dead and parcel.target not in self.dead:
                self._down[parcel.target].put((parcel.source, key[1]), size, parcel, last)

    def _deliver(self, pieces: "list[_Piece]") -> None:
        for _, _, parcel, last in pieces:
            if last and parcel.target not in self.dead and parcel.source not in self.dead:
                self.receivers[parcel.target](parcel.source, parcel.message)


Key = tuple[str, bool]
_Piece = tuple[Key, int, Parcel, bool]


class _Way:
    """One direction of a line."""

    def __init__(self, world: World, rate: float, through: Callable[[list[_Piece]], None]) -> None:
        self._world, self._rate, self._through = world, rate, through
        self._waiting: dict[Key, deque[_Piece]] = {}
        self._first: deque[Key] = deque()
        self._turns: deque[Key] = deque()
        self._busy = False

    def put(self, key: Key, size: int, parcel: Parcel, last: bool) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque([(key, size, parcel, last)])
            (self._first if size < TURN_BYTES and not key[1] else self._turns).append(key)
        else:
            waiting.append((key, size, parcel, last))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        turns = self._first or self._turns
        self._busy = bool(turns)
        if not turns:
            return
        key = turns.popleft()
        waiting, through, total, dead = self._waiting[key], list[_Piece](), 0, self._world.dead
        while waiting and (not through or total + waiting[0][1] <= TURN_BYTES):
            piece = waiting.popleft()
            parcel = piece[2]
            if parcel.target not in dead and not (parcel.tag is not None and parcel.tag.dropped):
                total += piece[1]
                through.append(piece)
        if waiting:
            self._turns.append(key)
        else:
            del self._waiting[key]
        self._world.after(total / self._rate, self._ended, through)

    def _ended(self, through: list[_Piece]) -> None:
        if through:
            self._through(through)
        self._next()
