"""Death at a stage of a round that the benchmark names, in the victim's own process.

Once the file that `BENCH_STRIKE` names exists, the peer kills all of its processes when it comes to the stage that is
written there.
"""

import asyncio
import os
import signal
from pathlib import Path

from dedloc_kit.swarm.averaging.agreement.leader import Leader
from dedloc_kit.swarm.averaging.agreement.voter import Voter
from dedloc_kit.swarm.averaging.allreduce import AllReduce
from dedloc_kit.swarm.averaging.streams.link import Link
from dedloc_kit.swarm.averaging.streams.messages import Says

STAGES = ("introduction", "sending", "report", "reducing", "roll", "told")
"""Before the others know it; in the middle of sending; with everything sent and received; as a reducer that has made a
part of its average; as the leader, before it signs the roll, and after it has told it."""
TOLD_SECONDS = 0.05


def inject(path: Path) -> None:
    """Call it before the worker builds its averager."""

    def strike(stage: str) -> None:
        if path.exists() and path.read_text() == stage:
            os.killpg(0, signal.SIGKILL)

    complete, send, take = AllReduce.complete, AllReduce._send, AllReduce.take_average
    report, propose = Voter._report, Leader._propose

    async def completing(self: AllReduce) -> None:
        strike("introduction")
        await complete(self)

    async def sending(self: AllReduce, reducer: int, link: Link) -> None:
        plain = link.send
        parts = sum(owner != self.mine for owner in self.plan.first.owners[self.row])

        async def send_and_die(message: bytes) -> None:
            await plain(message)
            if message[0] == Says.PART and 2 * len(self._sent) >= parts:
                strike("sending")

        link.send = send_and_die  # type: ignore[method-assign]
        await send(self, reducer, link)

    def taking(self: AllReduce, sender: int, content: bytes) -> None:
        take(self, sender, content)
        if sender == self.mine:
            strike("reducing")

    def reporting(self: Voter) -> None:
        report(self)
        if self._reported:
            strike("report")

    def proposing(self: Leader) -> None:
        ready = self.ballot is not None and self.ballot.ready
        if ready:
            strike("roll")
        propose(self)
        if ready and self.ballot is not None and self.ballot.proposed:
            asyncio.get_running_loop().call_later(TOLD_SECONDS, strike, "told")

    AllReduce.complete, AllReduce._send = completing, sending  # type: ignore[method-assign]
    AllReduce.take_average = taking  # type: ignore[method-assign]
    Voter._report, Leader._propose = reporting, proposing  # type: ignore[method-assign]
