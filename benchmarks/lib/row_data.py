"""One member's data in a round in rows: which chunks it has sent, holds and hands on. Numbers are left out.

An average of a chunk is named by who counts and who has finished it: after a death only what was lost travels again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.lib.line_world import Tag
from dedloc_kit.swarm.allreduce.plan import Assignment, Plan
from dedloc_kit.swarm.consensus.events import AverageComplete, Event, PartsComplete, ShareComplete
from dedloc_kit.swarm.consensus.records import Epoch

PART_BYTES, SUM_BYTES = 4.125 / 8, 8.0625 / 8
"""Of a value: 4 bits for parts and averages, 8 for sums of rows."""


class Part(NamedTuple):
    chunk: int


class RowSum(NamedTuple):
    counted: str
    chunk: int
    row: int


class Average(NamedTuple):
    counted: str
    chunk: int
    finisher: int


@dataclass(frozen=True)
class Outgoing:
    to: int
    message: Part | RowSum | Average
    size: int
    tag: Tag | None = None


def name_of(peers: Iterable[str]) -> str:
    return hashlib.sha256(",".join(peers).encode()).hexdigest()


class RowData:
    """Of one round."""

    def __init__(self, plan: Plan, me: int) -> None:
        self.plan, self.me = plan, me
        self.row = plan.rows[me]
        self.deal: Assignment = plan.first
        self.epoch: Epoch | None = None
        self.counted = ""
        self._all = (1 << len(plan.chunks)) - 1
        self._got: dict[int, int] = {me: self._all}
        self._sent: set[tuple[int, int]] = set()
        self._complete: set[int] = set()
        self._owned = 0
        self._rows = frozenset[int]()
        self._sums: dict[tuple[str, int], set[int]] = {}
        self._held: dict[tuple[str, int], set[int]] = {}
        self._served: set[tuple[object, ...]] = set()
        self._missing: dict[int, int] = {}
        self._reducing = False
        self._tag = Tag()

    def _peer(self, member: int) -> str:
        return self.plan.members[member]

    def _size(self, chunk: int, each: float) -> int:
        begin, end = self.plan.chunks[chunk]
        return int((end - begin) * each) + 64

    def begin(self) -> list[Outgoing]:
        """What goes before there is a group: all know the plan."""
        out = []
        for _, target, chunk in (*self.deal.parts(self.me), *self.deal.backups(self.me)):
            if (target, chunk) not in self._sent:
                self._sent.add((target, chunk))
                out.append(Outgoing(target, Part(chunk), self._size(chunk, PART_BYTES)))
        return out

    def assign(self, epoch: Epoch, reducers: Sequence[int]) -> tuple[list[Outgoing], list[Event]]:
        self.epoch, self.deal, self._reducing = epoch, self.plan.assign(reducers), False
        self._owned = sum(1 << chunk for chunk in self.deal.owned.get(self.me, ()))
        self._complete = set()
        out = self.begin()
        events: list[Event] = []
        if self.me in reducers:
            others = self.deal.rows - {self.row}
            events += [PartsComplete(epoch, self._peer(m)) for m, row in enumerate(self.plan.rows) if row in others]
            events += [event for member in self.plan.teams[self.row] for event in self._completed(member)]
        return out, events

    def take_part(self, source: int, part: Part) -> list[Event]:
        self._got[source] = self._got.get(source, 0) | 1 << part.chunk
        return self._completed(source)

    def _completed(self, member: int) -> list[Event]:
        if self.epoch is None or member in self._complete or self._owned & ~self._got.get(member, 0):
            return []
        self._complete.add(member)
        return [PartsComplete(self.epoch, self._peer(member))]

    def reduce(self, counted: Sequence[int]) -> tuple[list[Outgoing], list[Event]]:
        name = name_of(map(str, counted))
        if name != self.counted:
            self._tag.dropped, self._tag = True, Tag()
        self.counted, self._reducing = name, True
        self._rows = frozenset(self.plan.rows[member] for member in counted)
        chunks = range(len(self.plan.chunks))
        owners = self.deal.owners[self.row]
        self._missing = dict.fromkeys(self.deal.owned, 0)
        for chunk in chunks:
            if owners and not self._has(chunk):
                self._missing[owners[chunk]] += 1
        out: list[Outgoing] = []
        for chunk in self.deal.owned.get(self.me, ()):
            finisher = self.deal.makers[chunk]
            if self.row in self._rows:
                if finisher == self.me:
                    self._sums.setdefault((name, chunk), set()).add(self.row)
                else:
                    out += self._once(finisher, RowSum(name, chunk, self.row), SUM_BYTES)
            if self._has(chunk):
                out += self._hand_on(chunk)
        for chunk in chunks:
            out += self._finish(chunk)
        assert self.epoch is not None
        there: list[Event] = [
            ShareComplete(self.epoch, self._peer(m)) for m, count in self._missing.items() if not count
        ]
        return out, [*there, *self._averaged()]

    def _has(self, chunk: int) -> bool:
        return self.deal.makers[chunk] in self._held.get((self.counted, chunk), ())

    def _once(self, to: int, message: RowSum | Average, each: float) -> list[Outgoing]:
        if (to, *message) in self._served:
            return []
        self._served.add((to, *message))
        return [Outgoing(to, message, self._size(message.chunk, each), self._tag)]

    def take_sum(self, message: RowSum) -> tuple[list[Outgoing], list[Event]]:
        self._sums.setdefault((message.counted, message.chunk), set()).add(message.row)
        if not self._reducing or message.counted != self.counted:
            return [], []
        had = self._has(message.chunk)
        out = self._finish(message.chunk)
        return out, [] if had else self._arrived(message.chunk)

    def _finish(self, chunk: int) -> list[Outgoing]:
        if self.deal.makers[chunk] != self.me or not self._sums.get((self.counted, chunk), set()) >= self._rows:
            return []
        if not self._has(chunk):
            self._held.setdefault((self.counted, chunk), set()).add(self.me)
            self._missing[self.me] -= 1
        return self._hand_on(chunk)

    def _hand_on(self, chunk: int) -> list[Outgoing]:
        """To owners in other rows, if this is the finisher, and to the members of this row."""
        message = Average(self.counted, chunk, self.deal.makers[chunk])
        found: list[Outgoing] = []
        for _, target, _ in self.deal.averages(self.me, chunk):
            found += self._once(target, message, PART_BYTES)
        return found

    def take_average(self, message: Average) -> tuple[list[Outgoing], list[Event]]:
        held = self._held.setdefault((message.counted, message.chunk), set())
        if message.finisher in held:
            return [], []
        held.add(message.finisher)
        right = message.counted == self.counted and message.finisher == self.deal.makers[message.chunk]
        if not self._reducing or not right:
            return [], []
        owner = self.deal.owners[self.row][message.chunk] if self.deal.owners[self.row] else None
        if owner is not None:
            self._missing[owner] -= 1
        out = self._hand_on(message.chunk) if owner == self.me else []
        return out, self._arrived(message.chunk)

    def _arrived(self, chunk: int) -> list[Event]:
        owners = self.deal.owners[self.row]
        if self.epoch is None or not owners or self._missing[owners[chunk]]:
            return []
        return [ShareComplete(self.epoch, self._peer(owners[chunk])), *self._averaged()]

    def _averaged(self) -> list[Event]:
        assert self.epoch is not None
        average = self.average
        return [AverageComplete(self.epoch, average)] if average else []

    @property
    def average(self) -> str:
        """The digest of the whole average, if it is here."""
        if any(self._missing.values()) or not all(map(self._has, range(len(self.plan.chunks)))):
            return ""
        return name_of([self.counted, *map(str, self.deal.makers)])
