"""A reducer's own work: it averages those on the roll, and sends all members the same encoded average.

With several rows the owner of a chunk averages those of its row, and hands that mean in to the chunk's finisher, which
averages the rows and encodes what comes of it, once for all. The other owners hand on its very bytes in their rows.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.averaging.agreement.handshake import Introductions
from dedloc_kit.swarm.averaging.agreement.roll import Roll
from dedloc_kit.swarm.averaging.encoding.feedback import Coding
from dedloc_kit.swarm.averaging.reduction.means import Means
from dedloc_kit.swarm.averaging.reduction.plan import Deal
from dedloc_kit.swarm.averaging.reduction.reducer import MakeReducer
from dedloc_kit.swarm.averaging.streams import messages
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.window import Meter

if TYPE_CHECKING:
    from dedloc_kit.swarm.averaging.allreduce import AllReduce


class Reducing:
    """Of one roll after the other."""

    def __init__(self, round: "AllReduce", coding: Coding, make_reducer: MakeReducer) -> None:
        self._round, self._coding, self._make_reducer = round, coding, make_reducer
        # One chunk at a time: of a row, which waits for its members, and of all rows, which does not.
        self._row_sum, self._sum = torch.empty(CHUNK), torch.empty(CHUNK)
        self._plan, self._mine, self._links = round.plan, round.mine, round.links
        self.means = Means(round.plan, coding, round.mine)
        self._roll = b""
        self._deal: Deal = self._plan.first
        self._averages: dict[int, asyncio.Future[bytes]] = {}
        """Of the chunks that this peer owns."""
        self._weights: dict[int, float] | None = None
        """Of the rows, once all on the roll are known."""
        self._task: asyncio.Task[None] | None = None
        self._paused = False
        self._sent: set[tuple[Link, int]] = set()
        self._came = asyncio.Event()
        self._meter = Meter(len(round.plan.members))

    @property
    def rate(self) -> float:
        """Bytes per second at which averages came to all members together, as they say; 0 before any has."""
        return self._meter.rate

    def average_came(self, member: int) -> None:
        """It says so."""
        self._meter.came(member)

    def foresee(self, roll: Roll) -> None:
        """Average before there is a roll those who will be on it if nobody is left out: so the lines go both ways at
        once. Everyone keeps what comes early until the roll says whether it is taken."""
        if self._roll == roll.name:
            return
        self.begin(roll)
        if self._averages:
            self._start(self._round.handshake.weights({m: self._round.handshake.met[m] for m in roll.counted}))

    def begin(self, roll: Roll) -> None:
        """Average those on the roll, in place of those on the one before; those of this row have been introduced."""
        if self._roll == roll.name and self._averages:
            self.resume(roll)
            return
        self.stop()
        self._paused, self._sent = False, set()
        self._roll, self._deal, self._weights = roll.name, self._plan.deal(roll.reducers), None
        loop, owners = asyncio.get_running_loop(), self._deal.owners[self._round.row]
        self._averages = {number: loop.create_future() for number, owner in enumerate(owners) if owner == self._mine}
        if not self._averages:
            return
        for number in self._averages:
            if self._round.averages.messages[number]:
                self.has(number, self._round.averages.messages[number])
        self.means.begin(roll.name, self._deal)
        if not self._plan.one_row:
            handshake = self._round.handshake
            team = [m for m in self._plan.teams[self._round.row] if roll.introductions[m]]
            self._start(handshake.weights({member: handshake.met[member] for member in team}))
        for member, link in self._links.down.items():
            self.send(member, link)

    def finish(self, introductions: Introductions) -> None:
        """All on the roll have been introduced: now it is known how much each row counts."""
        if not self._averages:
            return
        if self._plan.one_row:
            if self._task is None:
                self._start(introductions.weights)
            return
        self._coding.averaged.begin(float(introductions.samples))
        self._weights = dict.fromkeys(range(len(self._plan.teams)), 0.0)
        for member, weight in introductions.weights.items():
            self._weights[self._plan.rows[member]] += weight
        for number in self._averages:
            self._finish(number)

    def part_came(self) -> None:
        """Averages that were foreseen may wait for it."""
        self._came.set()
        self._came = asyncio.Event()

    def stop(self, but: bytes = b"") -> None:
        """:param but: the name of a roll whose averages go on"""
        if but and self._roll == but:
            return
        self._averages, self._roll = {}, b""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for link in self._links.down.values():
            link.stop_averages()

    def pause(self) -> None:
        """There is another ballot. Most often another roll follows, and what that needs must not wait for averages that
        nobody takes then."""
        self._paused = True
        for link in self._links.down.values():
            link.stop_averages()

    def resume(self, roll: Roll) -> None:
        """The averages of this roll are taken after all, if it is the one that they are of."""
        if self._paused and self._roll == roll.name:
            self._paused = False
            for member, link in self._links.down.items():
                self.send(member, link)

    def send(self, member: int, link: Link) -> None:
        """Send a member the averages that it gets from this peer, as soon as they are there."""
        if self._paused:
            return
        roll, owners = self._roll, self._deal.owners[self._plan.rows[member]]
        waiting = {average: number for number, average in self._averages.items() if (link, number) not in self._sent}
        if self._plan.rows[member] != self._round.row:
            mine = {number for number, finisher in enumerate(self._deal.finishers) if finisher == self._mine}
            waiting = {a: n for a, n in waiting.items() if owners and owners[n] == member and n in mine}

        async def send() -> None:
            with contextlib.suppress(OSError):
                while waiting:
                    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    for average in sorted(done, key=waiting.__getitem__):
                        number = waiting.pop(average)
                        self._meter.sent(member, len(average.result()))
                        await link.send(messages.average(number, roll, average.result()))
                        self._sent.add((link, number))

        if waiting:
            link.send_averages(asyncio.create_task(send()))

    def has(self, number: int, encoded: bytes) -> None:
        """The average is there; those who get it from this peer wait for it."""
        average = self._averages.get(number)
        if average is not None and not average.done():
            average.set_result(encoded)

    def take_mean(self, sender: int, content: bytes) -> None:
        """From the owner in another row; raises ValueError."""
        self._finish(self.means.take(sender, *messages.read_average(content)))

    def lacking(self) -> set[int]:
        """Owners in other rows whose means this finisher waits for."""
        if self._plan.one_row or not self._weights:
            return set()
        rows = [row for row, weight in self._weights.items() if weight and row != self._round.row]
        waiting = [n for n, a in self._averages.items() if not a.done() and self._deal.finishers[n] == self._mine]
        return {self._deal.owners[row][n] for n in waiting for row in rows if not self.means.complete(n, [row])}

    def unfinished(self) -> set[int]:
        """Finishers in other rows whose averages this owner waits for, with all introductions."""
        if self._plan.one_row or not self._weights:
            return set()
        return {self._deal.finishers[n] for n, average in self._averages.items() if not average.done()} - {self._mine}

    def _start(self, weights: Mapping[int, int]) -> None:
        if self._plan.one_row:
            self._coding.averaged.begin(float(sum(weights.values())))
        numbers = list(self._averages)
        counted = {member: float(weight) for member, weight in weights.items() if weight}
        self._task = asyncio.create_task(self._reduce(numbers, counted))

    async def _reduce(self, numbers: Sequence[int], weights: Mapping[int, float]) -> None:
        """Of this row, one chunk after the other."""
        try:
            if not weights:  # of several rows another one may have some
                for number in numbers if self._plan.one_row else ():
                    self._encode(number, self._nothing(number))
                return
            named = {self._plan.members[member]: weight for member, weight in weights.items()}
            for number in numbers:
                reducer = self._make_reducer([self._room(self._row_sum, number)])
                reducer.expect(named)
                for member, weight in weights.items():
                    if member == self._mine:
                        values = self._round.own(number)
                    else:
                        while not self._round.parts.has(member, number):
                            await self._came.wait()
                        values = self._round.parts.of(member, number)
                    reducer.add(self._plan.members[member], 0, values, weight)
                mean = await reducer.result(0)
                if self._plan.one_row:
                    self._encode(number, mean)
                else:
                    self._hand_in(number, mean)
                await asyncio.sleep(0)  # messages must not wait for all of it
        except Exception as error:
            self._round.fail_here(f"adding up failed here ({error!r:.100})")

    def _nothing(self, number: int) -> Tensor:
        """The average where nobody brings samples."""
        return self._room(self._sum, number).zero_()

    def _room(self, room: Tensor, number: int) -> Tensor:
        begin, end = self._plan.chunks[number]
        return room[: end - begin]

    def _hand_in(self, number: int, mean: Tensor) -> None:
        way = self._coding.of_means(self._plan.chunks[number][0], self._plan.layout)
        encoded, finisher = way.compress(mean).SerializeToString(), self._deal.finishers[number]
        if finisher == self._mine:
            self.means.take(self._mine, number, self._roll, encoded)
            self._finish(number)
        else:
            self._round.post(finisher, messages.mean(number, self._roll, encoded))

    def _finish(self, number: int) -> None:
        """If this peer is the one to do it, and the means of all rows are there."""
        if self._plan.one_row or self._weights is None or number not in self._averages or self._averages[number].done():
            return
        rows = {row: weight for row, weight in self._weights.items() if weight}
        if self._deal.finishers[number] != self._mine or not self.means.complete(number, rows):
            return
        try:
            if not rows:
                self._encode(number, self._nothing(number))
                return
            reducer = self._make_reducer([self._room(self._sum, number)])
            reducer.expect({f"row {row}": weight for row, weight in rows.items()})
            for row, weight in rows.items():
                reducer.add(f"row {row}", 0, self.means.of(row, number), weight)
            self._encode(number, reducer.made(0))
        except Exception as error:
            self._round.fail_here(f"adding up failed here ({error!r:.100})")

    def _encode(self, number: int, average: Tensor) -> None:
        begin, place = self._plan.chunks[number][0], self._round.averages.place(number)
        encoded = self._coding.averaged.encode(
            self._coding.of_averages(begin, self._plan.layout), average, begin, place
        )
        message = bytes(encoded.SerializeToString())
        self.has(number, message)  # there may be no roll yet with which it is taken
        self._round.take_average(self._mine, messages.average(number, self._roll, message)[1:])
