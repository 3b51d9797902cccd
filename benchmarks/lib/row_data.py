"""One member's data in a round: the flow of chunks as it is, with messages that have a length and no values."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.lib.line_world import Tag
from dedloc_kit.swarm.allreduce.flow import ChunkFlow, Transmit
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.consensus.events import AverageComplete, Event, PartsComplete, ShareComplete
from dedloc_kit.swarm.consensus.records import Epoch

PART_BYTES, SUM_BYTES = 4.125 / 8, 8.0625 / 8
"""Of a value: 4 bits for parts and averages, 8 for sums of rows."""


class Part(NamedTuple):
    chunk: int


class RowSum(NamedTuple):
    counted: bytes
    chunk: int


class Average(NamedTuple):
    counted: bytes
    chunk: int
    finisher: int


class Wanted(NamedTuple):
    """:ivar held: chunks that are here, and who finished each"""

    average: str
    held: Mapping[int, int]


class Given(NamedTuple):
    average: str
    chunk: int
    finisher: int


@dataclass(frozen=True)
class Outgoing:
    to: int
    message: Part | RowSum | Average | Given
    size: int
    tag: Tag | None = None


def name_of(what: Iterable[object]) -> bytes:
    return hashlib.sha256(",".join(map(str, what)).encode()).digest()


class RowData:
    """Of one round."""

    def __init__(self, plan: Plan, me: int) -> None:
        self.plan, self.me, self.flow = plan, me, ChunkFlow(plan, me)
        self.epoch: Epoch | None = None
        self._sent: set[tuple[int, int]] = set()
        self._complete: set[int] = set()
        self._early: dict[Average, int] = {}
        self._reducing = False
        self._tag = Tag()

    def _peer(self, member: int) -> str:
        return self.plan.members[member]

    def _outgoing(self, to: int, message: Part | RowSum | Average | Given, each: float) -> Outgoing:
        begin, end = self.plan.chunks[message.chunk]
        tag = None if isinstance(message, Part) else self._tag
        return Outgoing(to, message, int((end - begin) * each) + 64, tag)

    def begin(self) -> list[Outgoing]:
        """What goes before there is a group: all know the plan."""
        out, assignment = [], self.flow.assignment
        for _, target, chunk in (*assignment.parts(self.me), *assignment.backups(self.me)):
            if (target, chunk) not in self._sent:
                self._sent.add((target, chunk))
                out.append(self._outgoing(target, Part(chunk), PART_BYTES))
        return out

    def assign(self, epoch: Epoch, reducers: Sequence[int]) -> tuple[list[Outgoing], list[Event]]:
        self.flow.assign(reducers)
        self.epoch, self._reducing, self._complete = epoch, False, set()
        out, events = self.begin(), list[Event]()
        if self.me in reducers:
            for member in (*self.flow.others, *self.plan.teams[self.flow.row]):
                events += self._completed(member)
        return out, events

    def take_part(self, source: int, part: Part) -> list[Event]:
        self.flow.part_came(source, part.chunk)
        return self._completed(source)

    def _completed(self, member: int) -> list[Event]:
        if self.epoch is None or member in self._complete or not self.flow.whole(member):
            return []
        self._complete.add(member)
        return [PartsComplete(self.epoch, self._peer(member))]

    def reduce(self, counted: Sequence[int]) -> tuple[list[Outgoing], list[Event]]:
        flow, name = self.flow, name_of(counted)
        if name != flow.name:
            self._tag.dropped, self._tag = True, Tag()
        self._reducing = True
        transmits = flow.reduce(name, counted)
        for chunk in flow.sums_due:
            transmits += flow.sum_made(chunk)
        for chunk in flow.averages_due:
            transmits += flow.take(chunk) if flow.ready(chunk) else []
        for message, source in list(self._early.items()):
            if self._is_wanted(source, message):
                del self._early[message]
                transmits += flow.take(message.chunk)
        assert self.epoch is not None
        there = sorted(flow.assignment.living - flow.owing)
        events: list[Event] = [ShareComplete(self.epoch, self._peer(member)) for member in there]
        return self._transmit(transmits), [*events, *self._averaged()]

    def _is_wanted(self, source: int, message: Average) -> bool:
        flow, (counted, chunk, finisher) = self.flow, message
        same = self._reducing and counted == flow.name and finisher == flow.assignment.makers[chunk]
        return same and flow.accepts(source, chunk)

    def _transmit(self, transmits: Iterable[Transmit]) -> list[Outgoing]:
        found, flow = [], self.flow
        for to, chunk, is_sum in transmits:
            if is_sum:
                found.append(self._outgoing(to, RowSum(flow.name, chunk), SUM_BYTES))
            else:
                found.append(self._outgoing(to, Average(flow.name, chunk, flow.held[chunk]), PART_BYTES))
        return found

    def take_sum(self, source: int, message: RowSum) -> tuple[list[Outgoing], list[Event]]:
        flow, chunk = self.flow, message.chunk
        flow.take_sum(source, message.counted, chunk)
        if not self._reducing or chunk in flow.held or chunk not in flow.averages_due or not flow.ready(chunk):
            return [], self._shared(source)
        return self._take(chunk, source)

    def take_average(self, source: int, message: Average) -> tuple[list[Outgoing], list[Event]]:
        if self._is_wanted(source, message):
            return self._take(message.chunk, source)
        self._early[message] = source
        return [], []

    def _take(self, chunk: int, source: int) -> tuple[list[Outgoing], list[Event]]:
        out = self._transmit(self.flow.take(chunk))
        return out, [*self._shared(source), *self._shared(self.me), *self._averaged()]

    def _shared(self, reducer: int) -> list[Event]:
        if self.epoch is None or not self._reducing or self.flow.owes(reducer):
            return []
        return [ShareComplete(self.epoch, self._peer(reducer))]

    def _averaged(self) -> list[Event]:
        assert self.epoch is not None
        average = self.average
        return [AverageComplete(self.epoch, average)] if average else []

    # An average of an earlier epoch, or that its reducers cannot send any more

    def comes(self, counted: Sequence[int]) -> bool:
        """Whether reducers are sending the average of these; what is here of another one is dropped."""
        if self.flow.name == name_of(counted):
            return self._reducing
        self.flow.name, self.flow.held = name_of(counted), {}
        return False

    def give(self, to: int, wanted: Wanted) -> list[Outgoing]:
        """The chunks that a member lacks, if the whole average is here."""
        if wanted.average != self.average:
            return []
        lacking = {chunk: who for chunk, who in self.flow.held.items() if wanted.held.get(chunk) != who}
        return [self._outgoing(to, Given(wanted.average, *each), PART_BYTES) for each in lacking.items()]

    def take_given(self, given: Given) -> list[Event]:
        self.flow.held[given.chunk] = given.finisher
        return self._averaged()

    @property
    def average(self) -> str:
        """The digest of the whole average, if it is here."""
        flow = self.flow
        if not flow.name or len(flow.held) < len(self.plan.chunks):
            return ""
        return name_of([flow.name.hex(), *(flow.held[chunk] for chunk in range(len(self.plan.chunks)))]).hex()
