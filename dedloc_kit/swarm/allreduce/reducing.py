"""A reducer's own work: it adds up its chunks for its row, and makes the averages that it finishes."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.allreduce.encoding.compression import ChunkCompression
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.flow import ChunkFlow
from dedloc_kit.swarm.allreduce.parts import Parts, Sums
from dedloc_kit.swarm.allreduce.plan import Assignment, Plan
from dedloc_kit.swarm.allreduce.reduction.reducer import MakeReducer


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
    """Where a reducer finds values and puts what it makes.

    :ivar parts: of members of its row
    :ivar sums: of other rows
    :ivar own: this peer's values of a chunk, float32 [numel]
    :ivar summed: told of each sum for a finisher elsewhere
    :ivar made: told of each encoded average
    :ivar failed: told why reducing is not possible here
    """

    parts: Parts
    sums: Sums
    own: Callable[[int], Tensor]
    summed: Callable[[int], None]
    made: Callable[[int, bytes], None]
    failed: Callable[[str], None]


class Reducing:
    """Of one set of contributions after the other. Chunks that were inherited come in addition.

    :ivar averages: that it has made of the present one, encoded
    :ivar sums: the same of its row's sums
    """

    def __init__(self, plan: Plan, flow: ChunkFlow, coding: Coding, make_reducer: MakeReducer, values: Values) -> None:
        self._plan, self._flow, self._coding, self._make_reducer = plan, flow, coding, make_reducer
        self._values = values
        self._sum = torch.empty(CHUNK)
        self._counted: Counted | None = None
        self.averages: dict[int, bytes] = {}
        self.sums: dict[int, bytes] = {}
        self._assignment: Assignment | None = None
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def begin(self, counted: Counted) -> None:
        """Average these contributions, in place of others, as the flow has it; what was made already stays."""
        if self._counted is None or counted.name != self._counted.name:
            self.averages, self.sums = {}, {}
            self._coding.averaged.begin(float(sum(counted.weights.values())))
        elif self._assignment is self._flow.assignment and self._task is not None and not self._task.done():
            return
        self._counted, self._assignment = counted, self._flow.assignment
        self.stop()
        self._task = asyncio.create_task(self._reduce(counted))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def stir(self) -> None:
        """A part or a sum has come."""
        self._news.set()
        self._news = asyncio.Event()

    async def _reduce(self, counted: Counted) -> None:
        coding, layout = self._coding, self._plan.layout
        try:
            for number in self._flow.sums_due:  # first, for others wait for them
                values = await self._row_sum(number, counted)
                self.sums[number] = self._encode(number, coding.of_means(self._plan.chunks[number][0], layout), values)
                self._values.summed(number)
                await asyncio.sleep(0)  # messages must not wait for all of it
            while due := self._flow.averages_due:
                ready = [each for each in due if self._flow.ready(each)]
                if not ready:
                    await self._news.wait()
                    continue
                number = ready[0]
                average = await self._row_sum(number, counted)
                for owner in self._flow.summands(number):
                    average.add_(self._values.sums.of(owner, number))
                way = coding.of_averages(self._plan.chunks[number][0], layout)
                self.averages[number] = self._encode(number, way, average)
                self._values.made(number, self.averages[number])
                await asyncio.sleep(0)
        except Exception as error:
            self._values.failed(f"adding up failed here ({error!r:.100})")

    async def _row_sum(self, number: int, counted: Counted) -> Tensor:
        """What members of this row add to the average, float32 [numel]; with one row the average itself.

        Of several rows it is small enough to be added: what compression loses of it, and of the average, is made good
        in the same way.
        """
        begin, end = self._plan.chunks[number]
        room, flow = self._sum[: end - begin], self._flow
        weights = {m: weight for m, weight in counted.weights.items() if self._plan.rows[m] == flow.row}
        if not weights:
            return room.zero_()
        reducer = self._make_reducer([room])
        reducer.expect({self._plan.members[member]: float(weight) for member, weight in weights.items()})
        for member, weight in weights.items():
            if member == flow.me:
                values = self._values.own(number)
            else:
                while not self._values.parts.has(member, number):
                    await self._news.wait()
                values = self._values.parts.of(member, number)
            reducer.add(self._plan.members[member], 0, values, float(weight))
        mean, whole = await reducer.result(0), sum(counted.weights.values())
        return mean if len(weights) == len(counted.weights) else mean.mul_(sum(weights.values()) / whole)

    def _encode(self, number: int, way: ChunkCompression, values: Tensor) -> bytes:
        begin = self._plan.chunks[number][0]
        return bytes(self._coding.averaged.encode(way, values, begin).SerializeToString())
