"""Death at a stage of a round that the benchmark names, in the victim's own process.

Once the file that `BENCH_STRIKE` names exists, the peer kills all of its processes when it comes to the stage that is
written there.
"""

import asyncio
import os
import signal
from pathlib import Path

from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.outbox import Outbox
from dedloc_kit.swarm.allreduce.parts import Average
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.events import Effect, Event, Send
from dedloc_kit.swarm.consensus.messages import Proposal, Report
from dedloc_kit.swarm.consensus.participant import Participant
from dedloc_kit.swarm.consensus.records import Commit

STAGES = ("introduction", "sending", "report", "reducing", "proposal", "proposed")
"""Before the others know it; in the middle of sending; as a reducer that has everything from somebody; as one that has
made a part of its average; as the decider, before it proposes who counts, and after it has proposed it."""
PROPOSED_SECONDS = 0.05


def inject(path: Path) -> None:
    """Call it before the worker builds its averager."""

    def strike(stage: str) -> None:
        if path.exists() and path.read_text() == stage:
            os.killpg(0, signal.SIGKILL)

    complete, send, handle, take = Round.complete, Outbox._send, Participant.handle, Average.take
    me = -1

    async def completing(self: Round) -> Commit:
        nonlocal me
        strike("introduction")
        me = self.me
        return await complete(self)

    async def sending(self: Outbox, reducer: int, link: Link) -> None:
        plain = link.send
        parts = sum(owner != me for owner in self._plan.first.makers)

        async def send_and_die(message: bytes) -> None:
            await plain(message)
            if message[0] == Kind.PART and 2 * len(self._sent) >= parts:
                strike("sending")

        link.send = send_and_die  # type: ignore[method-assign]
        await send(self, reducer, link)

    def taking(self: Average, source: int, number: int, encoded: bytes) -> None:
        take(self, source, number, encoded)
        if source == me:
            strike("reducing")

    def handling(self: Participant, event: Event, now: float) -> list[Effect]:
        effects = handle(self, event, now)
        told = [effect.message for effect in effects if isinstance(effect, Send)]
        if any(isinstance(message, Proposal) for message in told):
            strike("proposal")
            asyncio.get_running_loop().call_later(PROPOSED_SECONDS, strike, "proposed")
        if any(isinstance(message, Report) and message.complete for message in told):
            asyncio.get_running_loop().call_soon(strike, "report")
        return effects

    Round.complete, Outbox._send = completing, sending  # type: ignore[method-assign]
    Average.take, Participant.handle = taking, handling  # type: ignore[method-assign]
