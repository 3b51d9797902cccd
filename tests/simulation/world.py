"""Virtual time, and peers joined by lines with delay and rate: a pure function of a seed.

`now` and `deadline` of a process are of its own steady clock. It may run fast or slow, begins at another zero with each
start of its machine, and need not run while the machine sleeps.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, Protocol

Pair = tuple[str, str]


@dataclass(frozen=True)
class Line:
    """A peer's line: bytes a second up and down, and the seconds that its end adds to each way."""

    up: float = 12.5e6
    down: float = 12.5e6
    delay: float = 0.01


class Process(Protocol):
    """What the world calls."""

    @property
    def deadline(self) -> float: ...

    def receive(self, source: str, message: Any, now: float) -> None: ...

    def failed(self, other: str, reason: str, now: float) -> None: ...

    def tick(self, now: float) -> None: ...


class World:
    """One queue of events.

    :ivar silence: seconds until a peer that cannot be heard counts as failed
    :ivar broken: how often a death is noticed at once, by a broken stream
    :ivar triggers: called as the n-th message is delivered, before it is
    """

    def __init__(self, random: Random, silence: float = 5.0) -> None:
        self.random, self.now, self.silence = random, 0.0, silence
        self.processes: dict[str, Process] = {}
        self.lines: dict[str, Line] = defaultdict(Line)
        self.cuts: set[Pair] = set()
        self.drift: dict[str, float] = defaultdict(lambda: 1.0)
        self.zero: dict[str, float] = defaultdict(float)
        self.duplicates, self.broken = 0.0, 0.8
        self.delivered = 0
        self.triggers: dict[int, Callable[[str, str, Any], object]] = {}
        self.sent: Counter[str] = Counter()
        self._dead: set[str] = set()
        self._frozen: dict[str, float] = {}
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._count = 0
        self._busy: dict[tuple[str, str, bool], float] = defaultdict(float)
        self._last: dict[tuple[Pair, bool], float] = defaultdict(float)
        self._delays: dict[Pair, float] = {}
        self._backlog: dict[str, list[tuple[str, tuple[Any, ...]]]] = defaultdict(list)
        self._ticks: dict[str, float] = {}
        self._met: dict[str, set[str]] = defaultdict(set)
        self._held: dict[Pair, list[Any]] = {}

    # Time

    def at(self, when: float, call: Callable[..., object], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, call, args))

    def after(self, delay: float, call: Callable[..., object], *args: Any) -> None:
        self.at(self.now + delay, call, *args)

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Until then, or until `stop` says so."""
        queue = self._queue
        while queue and queue[0][0] <= until and not stop():
            self.now, _, call, args = heapq.heappop(queue)
            call(*args)
        if not stop():
            self.now = until

    def clock(self, name: str) -> float:
        return self.now * self.drift[name] - self.zero[name]

    def schedule_tick(self, name: str) -> None:
        due = (self.processes[name].deadline + self.zero[name]) / self.drift[name] + 1e-6
        if due < self._ticks.get(name, inf):
            self._ticks[name] = max(due, self.now)
            self.at(due, self._tick, name, self._ticks[name])

    def _tick(self, name: str, due: float) -> None:
        if self._ticks.get(name) == due:
            del self._ticks[name]
            self.call(name, "tick")

    def call(self, name: str, method: str, *args: Any) -> None:
        """Call a method of a process with its clock as the last argument; later if it stands still."""
        if name in self._frozen:
            self._backlog[name].append((method, args))
        elif name not in self._dead and name in self.processes:
            getattr(self.processes[name], method)(*args, self.clock(name))
            if name in self.processes and name not in self._dead:
                self.schedule_tick(name)

    # Messages

    def alive(self, name: str) -> bool:
        return name in self.processes and name not in self._dead

    def frozen(self, name: str) -> bool:
        return name in self._frozen

    def reachable(self, a: str, b: str) -> bool:
        return a not in self._dead and b not in self._dead and (a, b) not in self.cuts and (b, a) not in self.cuts

    def send(self, source: str, target: str, message: Any, size: int, bulk: bool = False) -> None:
        """In order on each of two streams between two peers: bulk data does not hold up what is small."""
        self.sent[type(message).__name__] += 1
        self._met[source].add(target)
        self._met[target].add(source)
        pair = (source, target)
        if pair in self.cuts:
            self._hold(pair, message)
            return
        if pair not in self._delays:
            both = self.lines[source].delay + self.lines[target].delay
            self._delays[pair] = both * self.random.uniform(0.5, 2)
        up, down = (source, "up", bulk), (target, "down", bulk)
        begins = max(self.now, self._busy[up])
        self._busy[up] = begins + size / self.lines[source].up
        first_byte = begins + self._delays[pair] * (0.8 + 0.6 * self.random.random())
        rate = min(self.lines[source].up, self.lines[target].down)
        self._busy[down] = max(first_byte, self._busy[down]) + size / self.lines[target].down
        arrives = max(first_byte + size / rate, self._busy[down])
        arrives = self._last[pair, bulk] = max(arrives, self._last[pair, bulk])
        self.at(arrives, self._arrive, source, target, message)
        if self.duplicates and self.random.random() < self.duplicates:
            self.at(arrives + self.random.uniform(0, 3), self._arrive, source, target, message)

    def _arrive(self, source: str, target: str, message: Any) -> None:
        if (source, target) in self.cuts:
            self._hold((source, target), message)
        elif target in self._dead:
            self.after(0.02, self.call, source, "failed", target, "refused")
        else:
            self.delivered += 1
            if self.delivered in self.triggers:
                self.triggers.pop(self.delivered)(source, target, message)
            self.call(target, "receive", source, message)

    def _hold(self, pair: Pair, message: Any) -> None:
        """A stream loses nothing: it delivers late, or breaks off at both ends."""
        held = self._held.setdefault(pair, [])
        if not held:
            self.after(self.silence, self._break, pair, held)
        held.append(message)

    def _break(self, pair: Pair, held: list[Any]) -> None:
        if self._held.get(pair) is held:
            del self._held[pair]
            for one, other in (pair, pair[::-1]):
                self.call(one, "failed", other, "broke off")

    # Faults

    def kill(self, name: str) -> None:
        """Most find its streams broken, some find it silent."""
        self._dead.add(name)
        self._frozen.pop(name, None)
        self._backlog.pop(name, None)
        for other in sorted(self._met[name]):
            if (name, other) not in self.cuts and self.random.random() < self.broken:
                self.after(0.02, self.call, other, "failed", name, "broke off")
            else:
                self.after(self.silence, self._suspect, other, name)

    def start(self, name: str, process: Process) -> None:
        self._dead.discard(name)
        self.processes[name] = process
        self.call(name, "tick")

    def freeze(self, name: str, seconds: float, clock_stops: bool = False) -> None:
        """It stands still, and goes on as if nothing had been; its steady clock may have stopped too."""
        if name not in self._dead and name not in self._frozen:
            self._frozen[name] = self.now if clock_stops else inf
            self.after(seconds, self.thaw, name)
            self.after(self.silence, self._suspect_everywhere, name)

    def thaw(self, name: str) -> None:
        if (stopped := self._frozen.pop(name, None)) is not None:
            self.zero[name] += max(0.0, self.now - stopped) * self.drift[name]
            self._ticks.pop(name, None)
            for method, args in self._backlog.pop(name, ()):
                self.call(name, method, *args)
            self.call(name, "tick")

    def cut(self, pairs: Iterable[Pair], seconds: float = inf) -> None:
        """Nothing goes from the first to the second of each pair."""
        pairs = set(pairs)
        self.cuts |= pairs
        for a, b in sorted(pairs):
            self.after(self.silence, self._suspect, b, a)
        if seconds < inf:
            self.after(seconds, self.heal, pairs)

    def heal(self, pairs: set[Pair] | None = None) -> None:
        healed = set(self.cuts) if pairs is None else pairs
        self.cuts -= healed
        for pair in sorted(healed & self._held.keys()):
            for message in self._held.pop(pair):
                self.after(self._delays.get(pair, 0.02), self._arrive, *pair, message)

    def _suspect(self, name: str, other: str) -> None:
        if other in self._dead or other in self._frozen or not self.reachable(name, other):
            self.call(name, "failed", other, "fell silent")

    def _suspect_everywhere(self, other: str) -> None:
        for name in sorted(self._met[other]):
            self._suspect(name, other)
