"""Does a stage peer answer what others of its stage do? A driver asks a second one now and then.

Nothing waits for that, and nobody knows beforehand which answers are compared. Who is right: this driver's own stage
peer, if it holds that stage; else two of three.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import NamedTuple

from torch import Tensor

from dedloc_kit.swarm.audits.projections import TOLERANCE
from dedloc_kit.swarm.pipeline.client import Answered, CallFailed, CallRefused, StageClient
from dedloc_kit.swarm.pipeline.peers import StagePeers
from dedloc_kit.swarm.pipeline.protocol import Call, Content
from dedloc_kit.swarm.remote.judging import near
from dedloc_kit.swarm.remote.tensors import Form, unpacked, unscaled

ONE_IN = 100
"""Answers, of which one is compared."""
AT_A_TIME, SECONDS = 4, 60.0
"""Answers that are being compared, and for how long at most: what came in and out of the stage is kept meanwhile."""

_log = logging.getLogger(__name__)


class _Asked(NamedTuple):
    client: StageClient
    call: Call
    content: Content
    size: int


class Checks:
    """Those of one driver.

    :param tasks: where they run
    :param me: the driver's peer id
    """

    def __init__(self, peers: StagePeers, tasks: asyncio.TaskGroup, me: str, form: Form) -> None:
        self._peers, self._tasks, self._me, self._form = peers, tasks, me, form
        self._running = 0

    def look(self, client: StageClient, call: Call, content: Content, answered: Answered, size: int) -> None:
        """An answer has come: it may be compared.

        :param size: bytes of the call and its answer
        """
        comparable = answered.output is not None or answered.loss is not None
        if comparable and self._running < AT_A_TIME and not secrets.randbelow(ONE_IN):
            self._running += 1
            asked = _Asked(client, call.model_copy(update={"adds": call.what == "forward"}), content, size)
            self._tasks.create_task(self._check(asked, answered))

    async def _check(self, asked: _Asked, answered: Answered) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SECONDS):
                    await self._compare(asked, answered)
        finally:
            self._running -= 1

    async def _compare(self, asked: _Asked, answered: Answered) -> None:
        first, second = asked.client, None
        given = _given(asked.call, asked.content)
        for other in self._others(asked):
            found = await self._answer_of(other, asked)
            if found is None:
                continue
            if alike(answered, found, given, self._form):
                if second is not None:
                    self._peers.bar(second[0], asked.call.what)
                return
            if self._me in (first.peer, other.peer):
                self._peers.bar(other if first.peer == self._me else first, asked.call.what)
                return
            if second is not None:
                if alike(second[1], found, given, self._form):
                    self._peers.bar(first, asked.call.what)
                    return
                break
            second = other, found
        if second is not None:
            self._peers.undecided(first, second[0])

    def _others(self, asked: _Asked) -> list[StageClient]:
        """This driver's own stage peer first, the rest in an order that nobody foresees."""
        others = self._peers.others(asked.client, asked.call.step)
        return sorted(others, key=lambda other: (other.peer != self._me, secrets.randbits(32)))

    async def _answer_of(self, other: StageClient, asked: _Asked) -> Answered | None:
        try:
            await self._peers.room(other)
            return await other.call(asked.call, asked.content, asked.size)
        except (CallFailed, CallRefused) as error:
            _log.debug("stage %d: %s: %s", other.stage.number, other.peer, error)
            return None


def alike(one: Answered, other: Answered, given: Tensor | None, form: Form) -> bool:
    """Are these answers as near as those of honest peers with other devices?

    :param given: the hidden states, or gradient, that they were computed from; None at either end of the model
    """
    losses = [answer.loss for answer in (one, other) if answer.loss is not None]
    if losses and max(losses) - min(losses) > TOLERANCE * max(map(abs, losses)):
        return False
    if one.output is None or other.output is None:
        return True
    return near(one.output, other.output, given, form)


def _given(call: Call, content: Content) -> Tensor | None:
    if call.what == "forward":
        return None if content.hidden is None else unpacked(content.hidden).float()
    return None if content.gradient is None else unscaled(unpacked(content.gradient).float(), call.exponent)
