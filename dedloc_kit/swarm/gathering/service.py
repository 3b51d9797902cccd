"""Carries what peers say to each other until a group stands. It lives in the network process and decides nothing."""

import asyncio
from collections import deque
from contextlib import suppress

from dedloc_kit.config.run import MAX_BATCHES, RunConfig
from dedloc_kit.records.position import check_position
from dedloc_kit.records.record import PeerId
from dedloc_kit.swarm.consensus.records import MAX_MEMBERS
from dedloc_kit.swarm.gathering.messages import Answered, Asked, Carried, Join, Lost, Verdict
from dedloc_kit.swarm.network.service import CLOSE_SECONDS, MAX_RECORD_BYTES, RECEIVE_SECONDS, Endpoint, Service, Stream

MAX_VERDICT_BYTES = 1024 + 256 * MAX_MEMBERS
FOLLOW_SECONDS = 700.0
"""For which a stream to a leader or from a follower stays open at most: `Verdict.seconds` and some more."""
UNHEARD = 64
"""Events that wait for the training; more of them wait in their streams."""


class GatheringService(Service):
    """One stream for each leader that this peer asks, and for each peer that asks this one."""

    name = "group"

    def __init__(self, endpoint: Endpoint, run: RunConfig) -> None:
        self._endpoint, self._run = endpoint, run
        self._events = deque[Carried]()
        self._changed = asyncio.Condition()
        self._leaders: dict[PeerId, asyncio.Task[None]] = {}
        self._followers: dict[PeerId, asyncio.Queue[Verdict | None]] = {}

    # Called by the training

    async def heard(self) -> list[Carried]:
        """What has come since the last call; waits until there is something."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._events))
            events = list(self._events)
            self._events.clear()
            self._changed.notify_all()
        return events

    async def ask(self, leader: PeerId, join: Join) -> None:
        """Ask a peer to lead this one."""
        await self.leave(leader)
        self._leaders[leader] = asyncio.create_task(self._follow(leader, join))

    async def leave(self, leader: PeerId) -> None:
        """Follow this leader no more."""
        task = self._leaders.pop(leader, None)
        if task is not None:
            task.cancel()
            self._events = deque(e for e in self._events if not (isinstance(e, Answered | Lost) and _of(e) == leader))

    async def answer(self, peer: PeerId, verdict: Verdict) -> None:
        """Tell a peer that has asked."""
        verdicts = self._followers.get(peer)
        if verdicts is not None:
            verdicts.put_nowait(verdict)

    async def _tell(self, event: Carried) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._events) < UNHEARD)
            self._events.append(event)
            self._changed.notify_all()

    # Streams

    async def _follow(self, leader: PeerId, join: Join) -> None:
        """Tell what a leader says until it says something else than `wait`, or the stream is over."""
        broken = True
        try:
            async with asyncio.timeout(FOLLOW_SECONDS), self._endpoint.open(leader, self, join.to_bytes()) as stream:
                while True:
                    verdict = Verdict.from_bytes(await stream.receive(MAX_VERDICT_BYTES))
                    await self._tell(Answered(leader, verdict))
                    if verdict.verdict != "wait":
                        return
        except EOFError:
            broken = False
        except (OSError, ValueError):
            pass
        finally:
            if self._leaders.get(leader) is asyncio.current_task():
                del self._leaders[leader]
        await self._tell(Lost(leader, broken))

    async def serve(self, peer: PeerId, stream: Stream) -> None:
        async with asyncio.timeout(RECEIVE_SECONDS):
            join = Join.from_bytes(await stream.receive(MAX_RECORD_BYTES))
        check_position(join.position, self._run.run_id, MAX_BATCHES * self._run.global_batch)
        if peer not in self._followers and len(self._followers) >= MAX_MEMBERS:
            raise ConnectionRefusedError("too many followers")
        if (older := self._followers.get(peer)) is not None:
            older.put_nowait(None)
        verdicts = self._followers[peer] = asyncio.Queue[Verdict | None]()
        left = asyncio.create_task(stream.closed(FOLLOW_SECONDS))
        try:
            await self._tell(Asked(peer, join))
            await self._answer(verdicts, stream, left)
            if self._followers.get(peer) is verdicts and left.done():
                await self._tell(Lost(peer, broken=False))
        finally:
            left.cancel()
            if self._followers.get(peer) is verdicts:
                del self._followers[peer]

    async def _answer(
        self, verdicts: "asyncio.Queue[Verdict | None]", stream: Stream, left: "asyncio.Task[None]"
    ) -> None:
        """Send what the training says until it says something else than `wait`, or the peer has left or asks anew."""
        while True:
            next_one = asyncio.create_task(verdicts.get())
            try:
                await asyncio.wait({next_one, left}, return_when=asyncio.FIRST_COMPLETED)
                if not next_one.done():
                    return
                verdict = next_one.result()
            finally:
                next_one.cancel()
            if verdict is None:
                return
            await stream.send(verdict.to_bytes())
            if verdict.verdict != "wait":
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(left), CLOSE_SECONDS)
                return


def _of(event: Answered | Lost) -> PeerId:
    return event.leader if isinstance(event, Answered) else event.peer
