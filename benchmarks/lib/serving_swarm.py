"""Servers of a model's layers join, look, announce, move, leave, in simulated time, as `blocks/plans/plan.py` decides.

Records are seen late, a load takes time, and who leaves is missed only when its record has run out. A server that moves
goes on serving what both its spans share.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dedloc_kit.blocks.plans.plan import Intention, LayerRange, Server, bottleneck, intend, may_begin, place

LOOK, DELAY, EXPIRY, LOAD, SETTLE = 15, 5, 30, 60, 10
"""Seconds between two looks of a server, until others see its record, until they miss it when it is gone, of loading,
and from a newcomer's announcement to its second look."""


@dataclass(frozen=True)
class Record:
    """What a server tells: `server` with the span that it serves or loads, and what it serves of it now."""

    server: Server
    announced: int
    """When it first announced this span as a newcomer."""
    loaded: int | None = None
    """When it serves all of the span; None before it loads."""
    serving: LayerRange | None = None
    intention: Intention | None = None
    """Announced, or begun and not ended."""


class ServingSwarm:
    """:param moves: whether servers ever move"""

    def __init__(self, layers: int, moves: bool = True) -> None:
        self.layers, self.now, self._move = layers, 0, moves
        self.records: dict[str, Record] = {}
        self.moved: list[tuple[int, str, LayerRange]] = []
        self._gone: dict[str, tuple[int, Record]] = {}
        self._past: deque[dict[str, Record]] = deque([{}] * DELAY, maxlen=DELAY)

    def join(self, name: str, speed: float, memory: int, span: LayerRange | None = None) -> None:
        """With a span: it serves that from now on."""
        self._gone.pop(name, None)
        if span is not None:
            self.records[name] = Record(Server(name, span, speed), self.now, self.now, span)
            return
        seen = [record.server for record in self._seen(name).values()]
        server = Server(name, place(self.layers, seen, name, speed, memory), speed)
        self.records[name] = Record(server, self.now)

    def leave(self, name: str) -> None:
        self._gone[name] = (self.now + EXPIRY, self.records.pop(name))

    def serving(self) -> list[Server]:
        """What is really served now."""
        return [replace(r.server, span=r.serving) for r in self.records.values() if r.serving is not None]

    def bottleneck(self) -> float:
        return bottleneck(self.layers, self.serving())

    def run(self, seconds: int) -> Iterator[int]:
        """The time after each second."""
        for _ in range(seconds):
            self._past.append({**{name: record for name, (_, record) in self._gone.items()}, **self.records})
            self.now += 1
            self._gone = {name: (end, record) for name, (end, record) in self._gone.items() if self.now < end}
            for name in sorted(self.records):
                self._act(name)
            yield self.now

    def _act(self, name: str) -> None:
        record = self.records[name]
        if record.loaded is None and self.now >= record.announced + SETTLE:
            self._settle(name, record)
        elif self.now == record.loaded:
            self.records[name] = replace(record, serving=record.server.span, intention=None)
        elif (
            self._move
            and record.loaded is not None
            and self.now > record.loaded
            and (self.now + _phase(name)) % LOOK == 0
        ):
            self._look(name, record)

    def _settle(self, name: str, record: Record) -> None:
        """Of newcomers at the same time the earlier ones have the choice; who chooses anew is later than they."""
        earlier = [
            other.server
            for other in self._seen(name).values()
            if (other.announced, other.server.name) < (record.announced, name)
        ]
        span = place(self.layers, earlier, name, record.server.speed, len(record.server.span))
        if span == record.server.span:
            self.records[name] = replace(record, loaded=self.now + LOAD)
        else:
            self.records[name] = replace(record, server=replace(record.server, span=span), announced=self.now)

    def _look(self, name: str, record: Record) -> None:
        seen = self._seen(name)
        servers = [record.server, *(other.server for other in seen.values())]
        others = [other.intention for other in seen.values() if other.intention is not None]
        mine = intend(self.layers, servers, name, record.intention, self.now)
        self.records[name] = record = replace(record, intention=mine)
        if mine is not None and may_begin(self.layers, servers, mine, others, self.now):
            self.moved.append((self.now, name, mine.span))
            server = replace(record.server, span=mine.span, moved=float(self.now))
            old, new = record.server.span, mine.span
            begin, end = max(old.begin, new.begin), min(old.end, new.end)
            shared = LayerRange(begin, end) if begin < end else None
            begun = replace(mine, begun=float(self.now))
            self.records[name] = Record(server, record.announced, self.now + LOAD, shared, begun)

    def _seen(self, name: str) -> dict[str, Record]:
        """The others' records, as old as they are when they get here."""
        return {other: record for other, record in self._past[0].items() if other != name}


def _phase(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % LOOK
