"""A party whose messages a test may watch, delay, drop, change or add to: so a member dies or lies at any of them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from benchmarks.lib.lines import Lines
from benchmarks.lib.party import Party
from dedloc_kit.swarm.allreduce import wire
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus import messages
from dedloc_kit.swarm.consensus.records import Entry
from dedloc_kit.swarm.network.service import Reader, Stream, Writer

M = TypeVar("M", bound=messages.Message)
Tap = Callable[[int, int, bytes], Awaitable[Sequence[bytes]]]
"""From, to, and the message: what is to be sent in its place."""


async def unchanged(sender: int, receiver: int, message: bytes) -> Sequence[bytes]:
    return [message]


class TappedStream(Stream):
    def __init__(self, reader: Reader, writer: Writer, party: "Tapped", me: int, other: int) -> None:
        super().__init__(reader, writer)
        self._party, self._me, self._other = party, me, other

    async def send(self, content: bytes | memoryview) -> None:
        for message in await self._party.tap(self._me, self._other, bytes(content)):
            await super().send(message)


@dataclass
class Tapped(Party):
    tap: Tap = unchanged

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        here, there = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
        return TappedStream(*here, self, me, number), TappedStream(*there, self, number, me)


class Simulated(Tapped):
    """On lines in simulated time."""

    wires: Lines

    async def connect(self, me: int, number: int) -> tuple[Stream, Stream]:
        return await self.wires.connect(me, number)


def kind_of(message: bytes) -> Kind:
    return Kind(message[0])


def agreed(message: bytes, kind: type[M]) -> M | None:
    """The message of the agreement in it, if it is one of this kind."""
    if message[0] != Kind.AGREEMENT:
        return None
    found = messages.decode(message[1:])
    return found if isinstance(found, kind) else None


def mean_of(party: Party, counted: Sequence[Entry]) -> Tensor:
    numbers = [int(entry.peer.removeprefix("peer")) for entry in counted]
    weights = torch.tensor([float(party.samples[number]) for number in numbers])
    mean: Tensor = weights @ torch.stack([party.gradients[number] for number in numbers]) / weights.sum()
    return mean


def check_one_step(party: Party, outcomes: Sequence[object], error: float = 1e-4) -> list[int]:
    """Those who took a step took the same, with the mean of those who count and the same bits; who they are."""
    took = [number for number, outcome in enumerate(outcomes) if not isinstance(outcome, BaseException)]
    took = [number for number in took if party.members[number].commit is not None]
    links = {commit.link for member in party.members if (commit := member.commit) is not None}
    assert len(links) <= 1, "two steps were decided"
    keep = [number for number in took if number not in party.lent]
    for number in took:
        assert number in party.lent or torch.equal(party.averages[number], party.averages[keep[0]])
        assert party.members[number].average == party.members[took[0]].average
    if took:
        mean = mean_of(party, party.members[took[0]].counted)
        found = party.averages[keep[0]]
        assert float((found - mean).norm()) <= error * max(1e-9, float(mean.norm()))
    return took


def groups_in(message: bytes) -> messages.Group | None:
    return messages.Group.from_bytes(message[1:]) if message[0] == wire.Kind.GROUP else None
