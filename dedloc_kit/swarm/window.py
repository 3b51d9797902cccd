"""How far a member of an all-reduce is ahead of its reducers.

What is sent at once only fills buffers on the way: the averages, which share the connection, wait behind it, and where
several members send to one, its line loses packets. So gradients go as averages come. How fast a line is shows in how
long a part is on its way; for that a reducer confirms each part whose average cannot go back at once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from hivemind.proto import averaging_pb2, runtime_pb2

AHEAD, LEAST_AHEAD = 12, 4
"""Parts of a member whose averages have not come: for all reducers together, and at least for each."""
LONGEST_WAIT = 1.0
"""Seconds until a member sends its next part in any case: who sends nothing for long counts as gone."""


class SendWindow:
    """What a member has sent to one reducer, and what of it has come.

    :param ahead: how many parts may be sent before their averages come
    """

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._sent = self._arrived = self._averages = 0
        self._news = asyncio.Event()
        self._bytes = 0
        self._busy_since = self._busy_seconds = 0.0  # busy: a part of ours is on its way

    @property
    def rate(self) -> float:
        """Bytes per second while any were on their way; 0 before all have come."""
        return self._bytes / self._busy_seconds if self._arrived == self._sent and self._busy_seconds else 0.0

    async def room(self, size: int) -> None:
        """Wait until the next part, of so many bytes, may go."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_WAIT):
                while self._sent - self._averages >= self._ahead:
                    self._news.clear()
                    await self._news.wait()
        if self._sent == self._arrived:
            self._busy_since = time.monotonic()
        self._sent += 1
        self._bytes += size

    async def averages(
        self, answers: AsyncIterator[averaging_pb2.AveragingData]
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """What the reducer answers, without its receipts; those for parts that were never sent are left in."""
        async for answer in answers:
            if self._arrived < self._sent and _is_receipt(answer):
                self._come(self._arrived + 1)
            else:
                self._averages += 1
                self._news.set()
                if self._arrived < min(self._averages, self._sent):
                    self._come(self._averages)  # for our part of it has come
                yield answer

    def _come(self, parts: int) -> None:
        self._arrived = parts
        if parts == self._sent:
            self._busy_seconds += time.monotonic() - self._busy_since


class Taken:
    """How many parts of a member its reducer has added up."""

    def __init__(self) -> None:
        self.parts = 0
        self._news = asyncio.Event()

    def add(self) -> None:
        self.parts += 1
        self._news.set()

    async def answers(
        self, averages: Iterable["asyncio.Future[runtime_pb2.Tensor]"]
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """The averages as they are done; while one takes its time, a receipt for each part that has been taken."""
        told = 0
        for number, average in enumerate(averages, start=1):
            average.add_done_callback(lambda _: self._news.set())
            while not average.done():
                if told < self.parts:
                    told += 1
                    yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART)
                else:
                    self._news.clear()
                    await self._news.wait()
            yield averaging_pb2.AveragingData(code=averaging_pb2.AVERAGED_PART, tensor_part=average.result())
            told = max(told, number)


def _is_receipt(answer: averaging_pb2.AveragingData) -> bool:
    return answer.code == averaging_pb2.AVERAGED_PART and not answer.HasField("tensor_part")
