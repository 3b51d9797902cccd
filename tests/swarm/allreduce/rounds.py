"""The all-reduce in `dedloc_kit/swarm/allreduce`, for the contract tests."""

import asyncio
from collections.abc import Collection, Coroutine, Sequence, Set
from typing import Any, TypeVar

from torch import Tensor

from benchmarks.lib.party import Party
from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.allreduce.agreement import GroupRefused
from dedloc_kit.swarm.allreduce.round import RoundFailed
from dedloc_kit.swarm.allreduce.streams import Patience
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.messages import decode
from dedloc_kit.swarm.network.service import Stream
from tests.swarm.allreduce.contract import COORDINATOR, Outcome, Setup, Trace

T = TypeVar("T")
LIMIT = 1_000.0
"""Seconds of a round: no test waits for it."""


class TracedParty(Party):
    """Its streams go through a trace."""

    trace: Trace

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        here, there = await super().connect(me, number)
        return self.trace.wrap(here, me, number), self.trace.wrap(there, number, me)


class Rounds:
    """A party of rounds."""

    def __init__(self, setup: Setup, members: TracedParty, trace: Trace) -> None:
        self._setup, self._members, self._trace = setup, members, trace
        self._gone: set[int] = set()
        self._ends: list[object] = []

    async def begin(self, but: Collection[int] = ()) -> None:
        self._gone |= set(but)
        self._members.prepare()
        for member in but:
            self._members.cut([member], [other for other in self._setup.members if other != member])
        await self._members.begin(list(but))

    async def end(self) -> None:
        self._ends = list(await self._members.end())

    async def over(self, member: int) -> None:
        await asyncio.wait([self._members.tasks[member]])

    def kill(self, member: int) -> None:
        if not self._members.tasks[member].done():  # else it has stepped, or not, before
            self._gone.add(member)
        self._members.kill(member)

    def cut(self, some: Collection[int], others: Collection[int]) -> None:
        self._members.cut(list(some), list(others))

    def freeze(self, member: int) -> None:
        self._trace.hold(member)

    def thaw(self, member: int) -> None:
        self._trace.release(member)

    @property
    def averages(self) -> Sequence[Tensor]:
        return self._members.averages

    @property
    def outcomes(self) -> Sequence[Outcome]:
        return ["gone" if member in self._gone else self.outcome(end) for member, end in enumerate(self._ends)]

    def outcome(self, end: object) -> Outcome:
        """What a member's round returned or raised means."""
        match end:
            case GroupRefused():
                return "too few"
            case RoundFailed():
                return "failed"
            case BaseException():
                raise end
        return "stepped"

    def counted(self, member: int) -> Set[int]:
        return self.places([entry.peer for entry in self._members.members[member].counted])

    def blamed(self, member: int) -> Set[int]:
        found = self._members.members[member]
        return self.places(found.culprits | found.named)

    def places(self, peers: Collection[str]) -> set[int]:
        return {self._members.plan.members.index(peer) for peer in peers}


class RoundEngine:
    def kind(self, message: bytes) -> str:
        kind = Kind(message[0])
        if kind == Kind.AGREEMENT:
            return decode(message[1:]).wire
        return "" if kind == Kind.HERE else kind.name.lower()

    def party(self, setup: Setup, trace: Trace) -> Rounds:
        members = TracedParty(
            setup.gradients,
            setup.samples,
            global_batch=setup.minimum,
            compression=setup.compression,
            clients=setup.firewalled,
            row=setup.row,
            organizer=COORDINATOR,
            patience=Patience(setup.patience, setup.patience),
            limit=LIMIT,
        )
        members.trace = trace
        return Rounds(setup, members, trace)

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        return in_own_loop(story)
