"""A stage peer's side of calls: they are received within bounds, checked, computed in turn and answered."""

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from dedloc_kit.swarm.network.bounds import AtATime, TooMuch
from dedloc_kit.swarm.network.service import Service, Stream, encode
from dedloc_kit.swarm.pipeline.begun import Drivers
from dedloc_kit.swarm.pipeline.computing import Computed, Given, StageComputer
from dedloc_kit.swarm.pipeline.protocol import (
    CALLS_AT_A_TIME,
    Answer,
    Call,
    Held,
    Told,
    receive_batch,
    receive_hidden,
)
from dedloc_kit.swarm.remote.judging import Judge, Refusal, Usual
from dedloc_kit.swarm.remote.listening import Listening
from dedloc_kit.swarm.remote.tensors import Form, Packed, in_form, packed, scaled, send_packed, unscaled
from dedloc_kit.swarm.remote.turns import Turns
from dedloc_kit.swarm.transfer.protocol import ALIVE_SECONDS, alive_until

BACKWARD, FORWARD = 0, 1
"""Priorities: the lowest goes first."""
SILENT_SECONDS, IDLE_SECONDS = 10.0, 600.0
"""For which a stream may stall in a call, and rest between two."""
LOOK_SECONDS = 0.1
"""How soon a follower is told of another step."""
QUEUE_SECONDS = 0.02
"""For each follower: how seldom all are told that the queue has changed, and nothing else."""
FOLLOWERS_AT_A_TIME = (2, 256)
ANEW_SECONDS = 60.0
"""In which a driver may have taken this peer for gone once."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a stage peer takes at most.

    :ivar tokens: of a microbatch
    :ivar streams_each: open ones of one driver
    :ivar calls_each: of one driver at a time; what these bring is held in memory
    """

    tokens: int
    streams_each: int = 16
    streams: int = 256
    calls_each: int = CALLS_AT_A_TIME
    calls: int = 32


class StageService(Service):
    """Computes the stage that this peer holds, for drivers. `following` is to be registered as well.

    :param turns: taken by the thread that trains
    :param form: in which hidden states travel
    :ivar held: what calls get; none at the moment if it is None
    :ivar rejections: what was refused, by kind
    """

    name = "stage"

    def __init__(self, held: StageComputer | None, turns: Turns, limits: Limits, form: Form, drivers: Drivers) -> None:
        self.held = held
        self.following = FollowingService(self, drivers)
        self._judge = Judge()
        self.rejections = self._judge.rejections
        self.turns, self._limits, self._form = turns, limits, form
        self._streams = AtATime(limits.streams_each, limits.streams)
        self._calls = AtATime(limits.calls_each, limits.calls)
        self._usual_states, self._usual_gradients = Usual(), Usual()

    @property
    def waiting(self) -> int:
        """Calls that are not done, one that is being computed included: an idle peer differs from a busy one."""
        return self.turns.unfinished

    def hold(self, held: StageComputer | None) -> None:
        """What calls get from now on."""
        self.held = held

    async def serve(self, peer: str, stream: Stream) -> None:
        try:
            with self._judge.counted(peer), self._streams.place(peer):
                while True:
                    async with asyncio.timeout(IDLE_SECONDS):
                        call = await stream.receive_record(Call)
                    with self._calls.place(peer):
                        await self._answer(peer, call, stream)
        except Refusal as refusal:
            await stream.turn_down(encode(refusal.told), refusal)

    async def _answer(self, peer: str, call: Call, stream: Stream) -> None:
        self._judge.check(peer)
        held = self.held
        if held is None or call.stage != held.stage.number:
            raise Refusal("stage", "it is not held here")
        if call.rows * call.length > self._limits.tokens:
            raise Refusal("shape", f"{call.rows} x {call.length} tokens where {self._limits.tokens} are agreed")
        held.check(peer, call)  # before it is taken; once more before it is computed
        given = await Listening(stream, SILENT_SECONDS, SILENT_SECONDS).heard(self._given(peer, call, held, stream))
        priority = BACKWARD if call.what == "backward" and call.adds else FORWARD
        computed = await alive_until(stream, self.turns.run(priority, partial(_computed, held, given)))
        await self._send(call, computed, stream)

    async def _given(self, peer: str, call: Call, held: StageComputer, stream: Stream) -> Given:
        stage, hidden, gradient = held.stage, None, None
        batch = await receive_batch(stream, call, stage)
        if stage.number:
            hidden = await receive_hidden(stream, call, stage)
        if call.what == "backward" and stage.number < stage.count - 1:
            gradient = await receive_hidden(stream, call, stage)
        try:
            stage.check(batch)
        except ValueError as error:
            raise Refusal("batch", str(error)) from None
        if hidden is not None:
            self._usual_states.check(peer, "hidden states", hidden)
        return Given(peer, call, batch, hidden, await self._checked(peer, call, gradient))

    async def _checked(self, peer: str, call: Call, gradient: Tensor | None) -> Tensor | None:
        """The gradient as it was before its way."""
        if gradient is None:
            return None
        gradient = await asyncio.to_thread(unscaled, gradient, call.exponent)
        self._usual_gradients.check(peer, "a gradient", gradient)
        return gradient

    async def _send(self, call: Call, computed: Computed, stream: Stream) -> None:
        output, exponent = None, 0
        # In a thread: of wide layers it takes as long as a GPU computes, and meanwhile other calls come and go.
        if computed.output is not None and call.what == "backward":
            output, exponent = await asyncio.to_thread(scaled, computed.output, self._form)
        elif computed.output is not None:
            output = await asyncio.to_thread(_packed, computed.output, self._form)
        waiting, seconds = self.waiting, computed.seconds
        await stream.send(encode(Answer(exponent=exponent, loss=computed.loss, seconds=seconds, waiting=waiting)))
        if output is not None:
            await send_packed(stream, output)


class FollowingService(Service):
    """Tells drivers which step this peer holds, and hears what they have begun for it."""

    name = "following"

    def __init__(self, stages: StageService, drivers: Drivers) -> None:
        self._stages, self._drivers = stages, drivers
        self._places = AtATime(*FOLLOWERS_AT_A_TIME)
        self._lines: dict[str, Stream] = {}
        self._anew: dict[str, float] = {}  # when a driver had this peer begin anew

    async def serve(self, peer: str, stream: Stream) -> None:
        try:
            with self._places.place(peer):
                await self._follow(peer, stream)
        except TooMuch:
            self._stages.rejections.add("full")
            raise ConnectionError("too many followers") from None

    async def _follow(self, peer: str, stream: Stream) -> None:
        told = await stream.receive_question(Told)
        await self._leave_out(peer, told.gone)
        self._lines[peer] = stream
        self._drivers.heard(peer, told.begun)
        ways = [asyncio.create_task(way) for way in (self._tell(peer, stream), self._hear(peer, stream))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            if self._lines.get(peer) is stream:
                del self._lines[peer]
                self._drivers.broken(peer)

    async def _tell(self, peer: str, stream: Stream) -> None:
        told, silent = None, 0.0
        while (held := self._stages.held) is not None:
            waiting = self._stages.waiting
            if told is not None and silent < QUEUE_SECONDS * len(self._lines):
                waiting = told.waiting
            sketch = held.sketch
            session = held.session_of(peer)
            now = Held(stage=held.stage.number, step=held.step, session=session, sketch=sketch, waiting=waiting)
            if now != told or silent > ALIVE_SECONDS:
                await stream.send(b"" if now == told else encode(now))
                told, silent = now, 0.0
            await asyncio.sleep(LOOK_SECONDS)
            silent += LOOK_SECONDS

    async def _hear(self, peer: str, stream: Stream) -> None:
        while True:
            told = await stream.receive_record(Told)
            if self._lines.get(peer) is stream:
                self._drivers.heard(peer, told.begun)

    async def _leave_out(self, peer: str, gone: str) -> None:
        """What this driver has sent, if it has had that computed elsewhere."""
        held, now = self._stages.held, time.monotonic()
        self._anew = {driver: at for driver, at in self._anew.items() if now < at + ANEW_SECONDS}
        if held is None or held.session_of(peer) != gone or peer in self._anew:
            return
        _log.warning("%s has taken this peer for gone; what it had sent of the step is computed elsewhere", peer)
        await self._stages.turns.run(BACKWARD, partial(held.leave_out, peer))
        self._anew[peer] = now


def _computed(held: StageComputer, given: Given) -> Computed:
    try:
        return held.compute(given)
    except Refusal:
        raise
    except Exception as error:
        _log.warning("a call fails: %r", error)
        raise Refusal("failed", repr(error)) from None


def _packed(output: Tensor, form: Form) -> Packed:
    return packed(in_form(output, form), form)
