"""A member's own values on their way to the reducers."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.encoding.codec import decode, read_part
from dedloc_kit.swarm.allreduce.encoding.feedback import Coding
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.plan import Plan, Transfer
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
        self._due: dict[int, list[int]] = {}
        self._backups: frozenset[int] = frozenset()
        self.window = SendWindow(self._sort(plan.first.parts(me), plan.first.backups(me), ()))
        self._sent: set[tuple[int, int]] = set()
        self._assigned = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def _sort(self, parts: Sequence[Transfer], backups: Sequence[Transfer], gone: Collection[int]) -> list[int]:
        """By who gets them; returns how many go to each member."""
        self._due, self._backups = defaultdict(list), frozenset(backup.chunk for backup in backups)
        for _, target, number in (*parts, *backups):
            if target not in gone:
                self._due[target].append(number)
        return [len(self._due.get(member, ())) for member in range(len(self._plan.members))]

    def assign(self, parts: Sequence[Transfer], backups: Sequence[Transfer], gone: Collection[int]) -> None:
        """What goes to whom from now on, and members to which nothing goes."""
        self.window.deal(self._sort(parts, backups, gone))
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

    async def _send(self, reducer: int, link: Link) -> None:
        try:
            while True:
                assigned = self._assigned
                for number in self._due.get(reducer, ()):
                    if (number, reducer) in self._sent:
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
        if number in self._backups:  # it counts only if this peer's own values do not: nothing is lost of those
            return bytes(way.compress(self.own(number)).SerializeToString())
        return bytes(self._coding.sent.encode(way, self._vector[begin:end], begin).SerializeToString())

    def own(self, number: int) -> Tensor:
        """This peer's values of a chunk that it reduces itself, float32 [numel]: if pledged, what others would get."""
        begin, end = self._plan.chunks[number]
        sealed = self._coding.sealed
        if sealed is not None:
            return decode(read_part(sealed.parts[number]), end - begin)
        return self._coding.sent.exact(self._vector[begin:end], begin)
