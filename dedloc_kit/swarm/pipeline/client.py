"""A stage peer, as a driver calls it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from torch import Tensor

from dedloc_kit.blocks.plans.hops import Hop, Measured, after
from dedloc_kit.records.stages import Begun
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.pipeline.protocol import (
    Answer,
    Call,
    Content,
    Cut,
    Held,
    Told,
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
SILENT_SECONDS, AGAIN_SECONDS = 7.0, 3.0
"""After so long without a word on its own line another one to a stage peer is opened, perhaps by way of others: is that
not there either, it is taken for gone, and what it had is computed again. One that stands still for less than that
notices earlier: see `member.STILL_SECONDS`."""
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

    :param gone: the session in which this driver has taken it for gone before
    :ivar session: see `Held`; empty before it has said so
    :ivar step: that it holds; -1 before it has said so
    :ivar sketch: of its parameters
    """

    def __init__(self, opener: Opener, peer: str, stage: Cut, gone: str = "") -> None:
        self.peer, self.stage = peer, stage
        self.session, self._gone = "", gone
        self.step = -1
        self.sketch: tuple[float, ...] = ()
        self._measured: Measured | None = None
        self._sent: list[float] = []  # when each call that has not been answered was
        self._waiting = 0  # calls that are not done there, as it said last
        self._opener = opener
        self._lines = Lines(opener, peer, StageService, (MIN_PATIENCE, MAX_PATIENCE))
        self._said = 0  # how often it has said what it holds
        self._followed: Line | None = None
        self._given_up = False

    async def follow(self, begun: Callable[[], Begun], heard: Callable[[], None]) -> None:
        """Hear which step it holds, and tell it what this driver has begun, until it is gone: raises CallFailed,
        of which PeerGone is one.

        A line that breaks or falls silent is opened again at once: the peer may be there with all that it was sent.

        :param heard: called when it has said something new
        """
        with _failing():
            line = await self._line(begun())
            while True:
                before, self._followed = self._said, line
                try:
                    await self._follow(line.stream, begun, heard)
                except BaseException as error:
                    await line.close(error)
                    if self._given_up:
                        raise CallFailed("its calls are not answered") from None
                    if not isinstance(error, OSError | EOFError) or self._said == before:
                        raise
                    await asyncio.sleep(LOOK_SECONDS)
                    try:
                        async with asyncio.timeout(AGAIN_SECONDS):
                            line = await self._line(begun())
                    except TimeoutError:
                        raise error from None

    def give_up(self) -> None:
        """Take it for gone, whatever it says on its line."""
        self._given_up = True
        if self._followed is not None:
            self._followed.stream.close()

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

    async def _line(self, begun: Begun) -> Line:
        told = Told(begun=begun, gone="" if self._said else self._gone)
        return await Line.open(self._opener, self.peer, FollowingService, encode(told))

    async def _follow(self, stream: Stream, begun: Callable[[], Begun], heard: Callable[[], None]) -> None:
        telling, seconds = asyncio.create_task(_tell(stream, begun)), AGAIN_SECONDS if self._said else SILENT_SECONDS
        try:
            while True:
                listening = Listening(stream, seconds, seconds)
                held = await listening.heard(stream.receive_record(Held))
                if held.stage != self.stage.number or held.session != (self.session or held.session):
                    raise ValueError("it has lost what it was sent")
                self._waiting = held.waiting
                if (held.step, held.sketch, held.session) != (self.step, self.sketch, self.session):
                    self.step, self.sketch, self.session = held.step, held.sketch, held.session
                    heard()
                self._said, seconds = self._said + 1, SILENT_SECONDS
        finally:
            telling.cancel()

    async def _call(self, call: Call, content: Content) -> Answered:
        async with self._lines.use() as (stream, listening):
            await send_call(stream, call.model_copy(update={"session": self.session}), content)
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
    told: Begun | None = None  # as the line was opened something else may have been
    with suppress(OSError):
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (now := begun()) != told:
                await stream.send(encode(Told(begun=now)))
                told = now


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except (ConnectionError, EOFError) as error:
        raise PeerGone(str(error) or repr(error)) from None
    except (OSError, ValueError) as error:
        raise CallFailed(str(error) or repr(error)) from None
