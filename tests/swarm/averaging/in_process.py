"""An all-reduce of some members in one process: the real objects, over pairs of sockets instead of libp2p."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.averaging.allreduce import AllReduce, Coding, GroupRefused, OpenStream, Patience, Plan
from dedloc_kit.swarm.averaging.compression import codec_of
from dedloc_kit.swarm.averaging.feedback import Feedback
from dedloc_kit.swarm.averaging.handshake import Handshake, Introductions
from dedloc_kit.swarm.averaging.reducer import MeanReducer, Reducer
from dedloc_kit.swarm.network.service import Stream
from dedloc_kit.training.flat import FlatLayout

MakeReducer = Callable[[Sequence[Tensor]], Reducer]


@dataclass
class Party:
    """A group: what each member brings, and with what it ended."""

    gradients: Sequence[Tensor]
    samples: Sequence[int]
    global_batch: int = 1
    compression: str = "none"
    make_reducer: MakeReducer = MeanReducer
    averages: list[Tensor] = field(default_factory=list)
    members: list[AllReduce] = field(default_factory=list)

    async def meet(self) -> list[BaseException | None]:
        """How it ended for each member."""
        layout, count = FlatLayout.of([self.gradients[0]]), len(self.gradients)
        peers = tuple(f"peer{number}" for number in range(count))
        shares = [layout.size // count] * count
        shares[-1] += layout.size - sum(shares)
        plan = Plan(peers, layout, tuple(shares))
        for number, peer in enumerate(peers):
            room = [torch.empty(end - begin) for begin, end in plan.chunks()[number]]
            coding = Coding(codec_of(self.compression), Feedback(layout.size), Feedback(layout.size))
            coding.sent.begin(float(self.samples[number]))
            handshake = Handshake(peers, peer, str(self.samples[number]).encode(), introduced, self._check)
            average = torch.empty(layout.size)
            self.averages.append(average)
            self.members.append(
                AllReduce(
                    peer,
                    plan,
                    (self.gradients[number], average),
                    coding,
                    self.make_reducer(room),
                    handshake,
                    Patience(5.0, 10.0),
                    self._line_of(peer, handshake),
                )
            )
        return await asyncio.gather(*(member.complete() for member in self.members), return_exceptions=True)

    def _check(self, introductions: Introductions) -> None:
        if introductions.samples < self.global_batch:
            raise GroupRefused(f"{introductions.samples} of {self.global_batch} samples")

    def _line_of(self, me: str, handshake: Handshake) -> OpenStream:
        @asynccontextmanager
        async def line(peer: str) -> AsyncIterator[Stream]:
            ends = [await asyncio.open_connection(sock=end) for end in socket.socketpair()]
            here, there = (Stream(*end) for end in ends)
            reducer = self.members[int(peer.removeprefix("peer"))]
            serving = asyncio.create_task(reducer.serve(me, handshake.introduction, there))
            serving.add_done_callback(lambda _: there.close())
            try:
                yield here
            finally:
                here.close()

        return line


def introduced(peer: str, introduction: bytes) -> Contribution:
    samples = int(introduction)
    return Contribution(
        run_id="tiny-0123456789abcdef",
        step=1,
        session="ab",
        samples=samples,
        session_samples=samples,
        loss=1.0,
        name=peer,
        time=time.time(),
    )
