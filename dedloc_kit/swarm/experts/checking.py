"""Does a host answer as the other one does that holds the same expert? A trainer asks that one, too, now and then.

Nothing waits for that, and nobody knows beforehand which answers are compared. After the same global step both hold the
same bits, so the other one is asked until it has taken it. Who is right: this trainer, if it holds the expert itself;
else nobody can say, and both are named. A host that says another step than it has is not found in this way.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor

from dedloc_kit.experts.calls import Cell
from dedloc_kit.pipeline_state import AGREEING
from dedloc_kit.records.experts import HostOffer
from dedloc_kit.swarm.experts.client import CallFailed
from dedloc_kit.swarm.experts.hosts import Host, Hosts
from dedloc_kit.swarm.experts.protocol import Backward, Forward
from dedloc_kit.swarm.remote.judging import near
from dedloc_kit.swarm.remote.tensors import Form, in_form, packed, scaled

ONE_IN = 100
"""Calls, of which the answer of one expert is compared."""
AT_A_TIME, SECONDS, AGAIN_SECONDS = 4, 60.0, 2.0
"""Answers that are being compared, for how long at most, and how often the other host is asked whether it has taken the
same step."""


def accused(offers: Mapping[str, HostOffer]) -> dict[str, int]:
    """Hosts of whom several say that they answer wrongly, or unlike others, and how many do; most of them first.

    :param offers: by peer
    """
    counts = Counter(peer for by, offer in offers.items() for peer in {*offer.accuses} - {by} if peer in offers)
    return {peer: count for peer, count in counts.most_common() if count >= AGREEING}


class Compared(NamedTuple):
    """What a host has made of an expert's tokens.

    :ivar step: that the expert had taken
    :ivar gradient: of the output, and `of_inputs` what it made of that; none of a call without gradients
    """

    host: Host
    layer: int
    cell: Cell
    step: int
    inputs: Tensor
    output: Tensor
    gradient: Tensor | None = None
    of_inputs: Tensor | None = None


class Checks:
    """Those of one trainer; all but `drawn` in the loop in which hosts are followed.

    :param me: the trainer's peer id
    :param columns: of the grid
    """

    def __init__(self, hosts: Hosts, me: str, columns: int, form: Form) -> None:
        self._hosts, self._me, self._columns, self._form = hosts, me, columns, form
        self._running = set[asyncio.Task[None]]()

    @staticmethod
    def drawn() -> bool:
        """Is the answer to the next call to be compared?"""
        return not secrets.randbelow(ONE_IN)

    def look(self, answered: Compared) -> None:
        """Compare, if there is somebody to ask."""
        others = self._hosts.others(answered.host, answered.layer, answered.cell)
        if others and len(self._running) < AT_A_TIME:
            task = asyncio.create_task(self._compare(answered, secrets.choice(others)))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _compare(self, answered: Compared, other: Host) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                alike = await self._is_alike(answered, other)
                if alike is False:
                    self._tell(answered.host, other)

    def _tell(self, one: Host, other: Host) -> None:
        mine = [host for host in (one, other) if host.client.peer == self._me]
        if mine:
            wrong = other if mine[0] is one else one
            self._hosts.fail(wrong, CallFailed("unlike", "it answers unlike the copy that is here"))
        else:
            self._hosts.differ(one.client.peer, other.client.peer)

    async def _is_alike(self, one: Compared, other: Host) -> bool | None:
        """None if that cannot be said."""
        cells, tokens, learns = (one.cell.row * self._columns + one.cell.column,), (len(one.inputs),), one.gradient
        call = Forward(layer=one.layer, cells=cells, tokens=tokens, keep=learns is not None)
        while True:
            found = await self._hosts.call(other, call, packed(in_form(one.inputs, self._form), self._form))
            if found is None or not found[1] or (found[0].step or 0) > one.step:
                return None
            answer, made = found
            if answer.step == one.step:
                break
            await asyncio.sleep(AGAIN_SECONDS)
        if not near(one.output, made[0], None, self._form):
            return False
        if learns is None or one.of_inputs is None:
            return True
        content, exponent = scaled(learns, self._form)
        learn = Backward(tickets=answer.tickets, tokens=tokens, exponent=exponent)
        back = await self._hosts.call(other, learn, content)
        if back is None or not back[1] or back[0].step != one.step:
            return None
        return near(one.of_inputs, back[1][0], None, self._form)
