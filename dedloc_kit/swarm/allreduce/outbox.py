"""A member's own values on their way to the reducers."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.encoding.codec import decode, read_part
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.plan import Plan
from dedloc_kit.swarm.allreduce.window import SendWindow


class Outbox:
    """Of one member in one round.

    :param values: float32 [size]; only read, and not at all if this peer brings no samples
    :param failed: told why this peer cannot send
    """

    def __init__(
        self, plan: Plan, me: int, coding: Coding, values: Tensor, brings: bool, failed: Callable[[str], None]
    ) -> None:
        self._plan, self._me, self._coding, self._vector = plan, me, coding, values
        self._brings, self._failed = brings, failed
        self._owners: Sequence[int] = plan.first.makers
        self.window = SendWindow(self._counts(self._owners, ()))
        self._sent: set[tuple[int, int]] = set()
        self._assigned = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def _counts(self, owners: Sequence[int], gone: Sequence[int]) -> list[int]:
        counts, nothing = Counter(owners), {self._me, *gone}
        return [0 if member in nothing else counts[member] for member in range(len(self._plan.members))]

    def assign(self, owners: Sequence[int], gone: Sequence[int]) -> None:
        """Who reduces each chunk from now on, and members to which nothing goes."""
        self._owners = owners
        self.window.deal(self._counts(owners, gone))
        self._assigned.set()
        self._assigned = asyncio.Event()

    def open(self, reducer: int, link: Link) -> None:
        """There is a stream to a reducer."""
        if self._brings:  # zeros need not travel
            task = asyncio.create_task(self._send(reducer, link))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def delivered(self) -> bool:
        """Whether all parts have come to those who reduce them, as they say."""
        due = {(number, owner) for number, owner in enumerate(self._owners) if owner != self._me}
        return due <= self._sent and self.window.empty

    async def _send(self, reducer: int, link: Link) -> None:
        try:
            while True:
                assigned = self._assigned
                for number, owner in enumerate(self._owners):
                    if owner != reducer or (number, reducer) in self._sent:
                        continue
                    self._sent.add((number, reducer))
                    await self.window.room(reducer)
                    encoded = self._encoded(number)
                    self.window.sent(reducer, len(encoded))
                    await link.send(wire.part(number, encoded))
                await assigned.wait()
        except OSError:
            pass  # the other side is gone: its stream says so
        except Exception as error:
            self._failed(f"encoding failed here ({error!r:.100})")

    def _encoded(self, number: int) -> bytes:
        sealed = self._coding.sealed
        if sealed is not None:
            return wire.with_path(sealed.commitment.opening(number).path, sealed.parts[number])
        begin, end = self._plan.chunks[number]
        way = self._coding.of_gradients(begin, self._plan.layout)
        return bytes(self._coding.sent.encode(way, self._vector[begin:end], begin).SerializeToString())

    def own(self, number: int) -> Tensor:
        """This peer's values of a chunk that it reduces itself, float32 [numel]: if pledged, what others would get."""
        begin, end = self._plan.chunks[number]
        sealed = self._coding.sealed
        if sealed is not None:
            return decode(read_part(sealed.parts[number]), end - begin)
        return self._coding.sent.exact(self._vector[begin:end], begin)
