"""A reducer's own work: it averages its chunks, and sends all members the same encoded average."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.parts import Parts
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer
from dedloc_kit.swarm.allreduce.window import Meter


@dataclass(frozen=True)
class Counted:
    """Whose parts are averaged.

    :ivar name: of this set of contributions; shares with different names never mix
    :ivar weights: by place in the group, of those that count for anything
    """

    name: bytes
    weights: Mapping[int, int]


@dataclass(frozen=True)
class Values:
    """Where a reducer finds its own values and puts averages.

    :ivar own: this peer's values of a chunk, float32 [numel]
    :ivar made: told of each encoded average
    :ivar failed: told why reducing is not possible here
    """

    own: Callable[[int], Tensor]
    made: Callable[[int, bytes], None]
    failed: Callable[[str], None]


class Reducing:
    """Of one set of contributions after the other. Chunks that were inherited come in addition."""

    def __init__(self, plan: Plan, me: int, parts: Parts, coding: Coding, make_reducer: MakeReducer, values: Values):
        self._plan, self._me, self._parts, self._coding = plan, me, parts, coding
        self._make_reducer, self._values = make_reducer, values
        self._sum = torch.empty(CHUNK)
        self._counted: Counted | None = None
        self._chunks: Sequence[int] = ()
        self._encoded: dict[int, bytes] = {}
        self._task: asyncio.Task[None] | None = None
        self._sends = False
        self._news = asyncio.Event()
        self._links: dict[int, Link] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._meter = Meter(len(plan.members))

    @property
    def name(self) -> bytes:
        """Of what is averaged."""
        return b"" if self._counted is None else self._counted.name

    @property
    def rate(self) -> float:
        """Bytes per second at which averages came to all members together; 0 before any has."""
        return self._meter.rate

    def came(self, member: int) -> None:
        """A member has received its next average."""
        self._meter.came(member)

    def prepare(self, counted: Counted, chunks: Sequence[int]) -> None:
        """Average these chunks of these contributions as their parts come, in place of others, and keep the averages.

        What was averaged already stays.
        """
        if self._counted is None or counted.name != self._counted.name:
            self._encoded = {}
            self._coding.averaged.begin(float(sum(counted.weights.values())))
            self._stop_sending()
        self._counted, self._chunks = counted, chunks
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(self._reduce())

    def begin(self, counted: Counted, chunks: Sequence[int]) -> None:
        """The same, and send the averages to all members."""
        if counted != self._counted or chunks != self._chunks or self._task is None:
            self.prepare(counted, chunks)
        self._sends = True
        for member, link in self._links.items():
            self._send_to(member, link)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._stop_sending()

    def _stop_sending(self) -> None:
        self._sends = False
        for task in self._sending.values():
            task.cancel()
        self._sending.clear()

    def part_came(self) -> None:
        self._stir()

    def _stir(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def add(self, member: int, link: Link) -> None:
        """A member has come: it gets all averages of this peer."""
        self._links[member] = link
        if self._sends:
            self._send_to(member, link)

    def drop(self, member: int) -> None:
        self._links.pop(member, None)
        if (task := self._sending.pop(member, None)) is not None:
            task.cancel()

    def _send_to(self, member: int, link: Link) -> None:
        if member not in self._sending:
            assert self._counted is not None
            self._sending[member] = asyncio.create_task(self._send(member, link, self._counted.name))

    async def _send(self, member: int, link: Link, name: bytes) -> None:
        sent = set[int]()
        with suppress(OSError):
            while True:
                news = self._news
                for number, encoded in list(self._encoded.items()):
                    if number not in sent:
                        sent.add(number)
                        self._meter.sent(member, len(encoded))
                        await link.send(wire.average(number, name, encoded))
                if self._encoded.keys() <= sent:
                    await news.wait()

    async def _reduce(self) -> None:
        counted = self._counted
        assert counted is not None
        try:
            for number in self._chunks:
                if number in self._encoded:
                    continue
                average = await self._average(number, counted)
                encoded = self._encode(number, average)
                self._encoded[number] = encoded
                self._values.made(number, encoded)
                self._stir()
                await asyncio.sleep(0)  # messages must not wait for all of it
        except Exception as error:
            self._values.failed(f"adding up failed here ({error!r:.100})")

    async def _average(self, number: int, counted: Counted) -> Tensor:
        begin, end = self._plan.chunks[number]
        room = self._sum[: end - begin]
        if not counted.weights:
            return room.zero_()
        reducer = self._make_reducer([room])
        reducer.expect({self._plan.members[member]: float(weight) for member, weight in counted.weights.items()})
        for member, weight in counted.weights.items():
            if member == self._me:
                values = self._values.own(number)
            else:
                while not self._parts.has(member, number):
                    await self._news.wait()
                values = self._parts.of(member, number)
            reducer.add(self._plan.members[member], 0, values, float(weight))
        return await reducer.result(0)

    def _encode(self, number: int, average: Tensor) -> bytes:
        begin = self._plan.chunks[number][0]
        way = self._coding.of_averages(begin, self._plan.layout)
        return bytes(self._coding.averaged.encode(way, average, begin).SerializeToString())
