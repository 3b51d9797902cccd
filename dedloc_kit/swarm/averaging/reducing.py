"""A reducer's own work: it averages those on the roll, and sends all members the same encoded average."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from dedloc_kit.swarm.averaging import messages
from dedloc_kit.swarm.averaging.agreement.roll import Roll
from dedloc_kit.swarm.averaging.feedback import Coding
from dedloc_kit.swarm.averaging.handshake import Introductions
from dedloc_kit.swarm.averaging.link import Link
from dedloc_kit.swarm.averaging.reducer import Reducer

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.allreduce import AllReduce

MakeReducer = Callable[[Sequence[tuple[int, int]]], Reducer]
"""For chunks (begin, end) of the vector."""


class Reducing:
    """Of one roll after the other."""

    def __init__(self, round: "AllReduce", values: Sequence[Tensor], coding: Coding, make_reducer: MakeReducer) -> None:
        self._round, self._values, self._coding, self._make_reducer = round, values, coding, make_reducer
        self._plan, self._mine, self._links = round.plan, round.mine, round.links
        self._roll = b""
        self._numbers: list[int] = []
        self._averages: list[asyncio.Future[bytes]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, roll: Roll, introductions: Introductions) -> None:
        """Average those on the roll, in place of those on the one before."""
        self.stop()
        owners = self._plan.owners(roll.reducers)
        self._numbers = [number for number, owner in enumerate(owners) if owner == self._mine]
        if not self._numbers:
            return
        self._roll = roll.name
        self._coding.averaged.begin(float(introductions.samples))
        loop = asyncio.get_running_loop()
        self._averages = [loop.create_future() for _ in self._numbers]
        self._task = asyncio.create_task(self._reduce(introductions))
        for link in self._links.down.values():
            self.send(link)

    def stop(self) -> None:
        self._numbers = []
        if self._task is not None:
            self._task.cancel()
        for link in self._links.down.values():
            link.stop_averages()

    def send(self, link: Link) -> None:
        """Send a member the averages, as soon as they are made."""
        numbers, averages, roll = list(self._numbers), list(self._averages), self._roll

        async def send() -> None:
            with contextlib.suppress(OSError):
                for number, average in zip(numbers, averages, strict=True):
                    await link.send(messages.average(number, roll, await asyncio.shield(average)))

        if numbers:
            link.send_averages(asyncio.create_task(send()))

    async def _reduce(self, introductions: Introductions) -> None:
        weights = {p: float(c.samples) for p, c in introductions.contributions.items() if c.samples}
        try:
            reducer = self._make_reducer([self._plan.chunks[number] for number in self._numbers])
            reducer.expect(weights)
            for index, number in enumerate(self._numbers):
                begin = self._plan.chunks[number][0]
                for peer, weight in weights.items():
                    member = self._plan.members.index(peer)
                    if member == self._mine:
                        values = self._coding.sent.exact(self._values[number], begin)
                    else:
                        values = self._round.parts.of(member, number)
                    reducer.add(peer, index, values, weight)
                way, place = self._coding.of_averages(begin, self._plan.layout), self._round.averages.place(number)
                average = self._coding.averaged.encode(way, await reducer.result(index), begin, place)
                self._averages[index].set_result(bytes(average.SerializeToString()))
                self._round.take_average(
                    self._mine, messages.average(number, self._roll, self._averages[index].result())[1:]
                )
                await asyncio.sleep(0)  # messages must not wait for all of it
        except Exception as error:
            self._round.fail_here(f"adding up failed here ({error!r:.100})")
