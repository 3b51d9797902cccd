"""A stage peer, as a driver calls it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from torch import Tensor

from dedloc_kit.blocks.hops import Hop, Measured, after
from dedloc_kit.records import Begun
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.pipeline.protocol import (
    Answer,
    Call,
    Content,
    Cut,
    Held,
    receive_hidden,
    receive_reply,
    send_call,
)
from dedloc_kit.swarm.pipeline.service import LOOK_SECONDS, FollowingService, StageService
from dedloc_kit.swarm.remote.judging import Kind, Refused
from dedloc_kit.swarm.remote.lines import Line, Lines, Opener
from dedloc_kit.swarm.remote.listening import Listening
from dedloc_kit.swarm.remote.tensors import unscaled

MIN_PATIENCE, MAX_PATIENCE = 5.0, 30.0
"""Seconds of silence after which a call has failed; see `Listening`."""
GONE_SECONDS = 10.0
"""After so long without a word on its own line a stage peer is taken for gone, and what it had is computed again. One
that stands still for less than that notices earlier: see `member.STILL_SECONDS`."""
LONGEST_ANSWER = 600.0
"""Seconds, also for one that says all the time that it is still here."""


class CallFailed(Exception):
    """A stage peer did not answer, or not rightly."""


class PeerGone(CallFailed):
    """A stage peer is not reached, or its line has broken: it is not only silent."""


class CallRefused(Exception):
    """A stage peer refuses a call.

    :ivar step: that it holds
    """

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"it refuses ({refused.why}): {refused.text}")
        self.why: Kind = refused.why
        self.step = refused.step


class Answered:
    """What a stage peer answers to a call."""

    def __init__(self, answer: Answer, output: Tensor | None) -> None:
        self.loss, self.output = answer.loss, output
        self.seconds, self.waiting = answer.seconds, answer.waiting


class StageClient:
    """One peer of a stage. Lines to it stay open.

    :ivar step: that it holds; -1 before it has said so
    :ivar sketch: of its parameters
    """

    def __init__(self, opener: Opener, peer: str, stage: Cut) -> None:
        self.peer, self.stage = peer, stage
        self.step = -1
        self.sketch: tuple[float, ...] = ()
        self._measured: Measured | None = None
        self._sent: list[float] = []  # when each call that has not been answered was
        self._waiting = 0  # calls that are not done there, as it said last
        self._opener = opener
        self._lines = Lines(opener, peer, StageService, (MIN_PATIENCE, MAX_PATIENCE))
        self._session = ""
        self._said = 0  # how often it has said what it holds

    async def follow(self, begun: Callable[[], Begun], heard: Callable[[], None]) -> None:
        """Hear which step it holds, and tell it what this driver has begun, until it is gone: raises CallFailed,
        of which PeerGone is one.

        A line that breaks is opened again at once: the peer may be there with all that it was sent.

        :param heard: called when it has said something new
        """
        with _failing():
            while True:
                line, before = await Line.open(self._opener, self.peer, FollowingService, encode(begun())), self._said
                try:
                    await self._follow(line.stream, begun, heard)
                except BaseException as error:
                    await line.close(error)
                    if not isinstance(error, ConnectionError | EOFError) or self._said == before:
                        raise
                    await asyncio.sleep(LOOK_SECONDS)

    @property
    def hop(self) -> Hop:
        """What this driver knows of it."""
        oldest = time.monotonic() - self._sent[0] if self._sent else 0.0
        return Hop(self.peer, self._measured, len(self._sent), self._waiting, oldest)

    async def call(self, call: Call, content: Content, size: int) -> Answered:
        """Raises CallRefused or CallFailed.

        :param size: bytes of the call and its answer
        """
        ahead, began = self.hop.ahead, time.monotonic()
        self._sent.append(began)
        try:
            with _failing():
                async with asyncio.timeout(LONGEST_ANSWER):
                    answered = await self._call(call, content)
        finally:
            self._sent.remove(began)
        now = time.monotonic()
        self._measured = after(self._measured, size, now - began, answered.seconds, ahead, now)
        self._waiting = answered.waiting
        return answered

    async def close(self) -> None:
        await self._lines.close()

    async def _follow(self, stream: Stream, begun: Callable[[], Begun], heard: Callable[[], None]) -> None:
        telling = asyncio.create_task(_tell(stream, begun))
        try:
            while True:
                listening = Listening(stream, GONE_SECONDS, GONE_SECONDS)
                held = await listening.heard(stream.receive_record(Held))
                if held.stage != self.stage.number or held.session != (self._session or held.session):
                    raise ValueError("it has lost what it was sent")
                self._waiting = held.waiting
                if (held.step, held.sketch, held.session) != (self.step, self.sketch, self._session):
                    self.step, self.sketch, self._session = held.step, held.sketch, held.session
                    heard()
                self._said += 1
        finally:
            telling.cancel()

    async def _call(self, call: Call, content: Content) -> Answered:
        async with self._lines.use() as (stream, listening):
            await send_call(stream, call.model_copy(update={"session": self._session}), content)
            reply = await listening.heard(receive_reply(stream))
            if isinstance(reply, Refused):
                raise CallRefused(reply)
            output = await listening.heard(self._output(call, reply, stream))
            if (reply.loss is None) == self._last:
                raise ValueError("a loss of another stage than the last")
        return Answered(reply, output)

    async def _output(self, call: Call, answer: Answer, stream: Stream) -> Tensor | None:
        if call.what == "forward":
            return None if self._last else await receive_hidden(stream, call, self.stage)
        if not self.stage.number:
            return None
        return unscaled(await receive_hidden(stream, call, self.stage), answer.exponent)

    @property
    def _last(self) -> bool:
        return self.stage.number == self.stage.count - 1


async def _tell(stream: Stream, begun: Callable[[], Begun]) -> None:
    """Each time something else is begun, as long as the line holds: who listens there sees that it has broken."""
    told = begun()
    with suppress(OSError):
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (now := begun()) != told:
                await stream.send(encode(now))
                told = now


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except (ConnectionError, EOFError) as error:
        raise PeerGone(str(error) or repr(error)) from None
    except (OSError, ValueError) as error:
        raise CallFailed(str(error) or repr(error)) from None
