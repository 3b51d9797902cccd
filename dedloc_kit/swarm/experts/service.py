"""A host's side of calls: they are received within bounds, checked, computed in turn and answered."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.config.run import MAX_BATCHES, RunConfig
from dedloc_kit.experts import refused as experts
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import ExpertName, Microbatch
from dedloc_kit.experts.usual import Usual
from dedloc_kit.learning.train.computing.device import out_of_memory
from dedloc_kit.swarm.experts.load import Load
from dedloc_kit.swarm.experts.protocol import Answer, Backward, Call, Forward, receive_call
from dedloc_kit.swarm.network.bounds import AtATime, ByteBudget
from dedloc_kit.swarm.network.service import Service, Stream, encode
from dedloc_kit.swarm.remote.judging import Judge, Kind, Refusal
from dedloc_kit.swarm.remote.listening import Listening
from dedloc_kit.swarm.remote.tensors import Form, Packed, in_form, packed, receive_tensor, scaled, send_packed, unscaled
from dedloc_kit.swarm.remote.turns import Turns
from dedloc_kit.swarm.transfer.protocol import alive_until

BACKWARD, FORWARD = 0, 1
"""Priorities: the lowest goes first. A backward call gives back the room that its forward call has taken."""
SILENT_SECONDS, ARRIVING_SECONDS, IDLE_SECONDS = 10.0, 60.0, 600.0
"""For which a stream may stall in a call, a call may be on its way, and a stream may rest between two."""
STEP_SECONDS, LOOK_SECONDS = 2.0, 0.01
"""For which a call waits that comes before the step which it is for, and how often it looks for that."""
COPIES = 4
"""Of what comes are in memory while a call is answered: as bytes, as numbers, and both of the answer."""

_KINDS: Mapping[experts.Kind, Kind] = {
    "unknown": "unknown",
    "shape": "shape",
    "not finite": "failed",
    "absurd": "absurd",
    "stale": "stale",
    "ahead": "ahead",
    "samples": "batch",
    "forgotten": "forgotten",
    "large": "full",
}
"""What a bank refuses. Numbers that come are finite: who sends them is not to blame for what they become."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a host takes at most.

    :ivar bytes: of all that comes and goes at a time
    :ivar streams_each: open ones of one trainer
    :ivar calls_each: of one trainer at a time
    """

    bytes: int = 2**28
    streams_each: int = 16
    streams: int = 256
    calls_each: int = 8
    calls: int = 64


class Claims:
    """Samples that trainers have said their gradients are of, by layer, since the last step.

    Who says so of more than anybody may bring to a batch is refused: gradients count by samples.
    """

    def __init__(self, most: int) -> None:
        self._most, self._step = most, 0
        self._samples: Counter[tuple[str, int]] = Counter()

    def add(self, trainer: str, call: Forward, step: int) -> None:
        """Raises Refusal.

        :param step: that is held
        """
        if step != self._step:
            self._step = step
            self._samples.clear()
        if self._samples[trainer, call.layer] + call.samples > self._most:
            raise Refusal("batch", f"{self._most} samples of one trainer are enough for a step")
        self._samples[trainer, call.layer] += call.samples


class Computed(NamedTuple):
    """By those experts of a call that did not refuse it."""

    answered: list[int]
    outputs: list[Tensor]
    tickets: list[int]
    refused: list[Kind]
    steps: set[int]
    """That experts here had taken meanwhile."""


class ExpertService(Service):
    """Computes the experts of a bank, for trainers.

    :param turns: whose thread computes
    :param form: in which what is answered travels
    :param me: the host
    :ivar rejections: what was refused, by kind
    """

    name = "experts"

    def __init__(self, run: RunConfig, bank: Bank, turns: Turns, form: Form, limits: Limits, me: str = "") -> None:
        assert run.experts is not None
        self.load = Load(me)
        self._settings: ExpertsConfig = run.experts
        self._bank, self._turns, self._form = bank, turns, form
        self._judge = Judge()
        self.rejections = self._judge.rejections
        self._streams = AtATime(limits.streams_each, limits.streams)
        self._calls = AtATime(limits.calls_each, limits.calls)
        self._room = ByteBudget(limits.bytes)
        self._claims = Claims(MAX_BATCHES * run.global_batch)
        self._usual = {layer: Usual() for layer in run.experts.layers}

    @property
    def step(self) -> int:
        """The global step that all experts here have taken."""
        return min(self._steps(), default=0)

    def _steps(self) -> set[int]:
        return set(self._bank.steps(self._bank.names))

    async def serve(self, peer: str, stream: Stream) -> None:
        try:
            with self._judge.counted(peer), self._streams.place(peer):
                while True:
                    async with asyncio.timeout(IDLE_SECONDS):
                        call = await receive_call(stream)
                    self._judge.check(peer)
                    size = COPIES * 4 * self._settings.width * sum(call.tokens)
                    with self._calls.place(peer), self._room.place(peer, size), _within_memory():
                        await self._answer(peer, call, stream)
        except Refusal as refusal:
            await stream.turn_down(encode(refusal.told), refusal)

    async def _answer(self, peer: str, call: Call, stream: Stream) -> None:
        if isinstance(call, Forward):
            self._check(peer, call)
        computing = self._computing(peer, call, await self._arrived(call, stream))
        began = time.monotonic()
        if isinstance(call, Forward) and call.samples:
            await alive_until(stream, self._reached(call))
        waited = time.monotonic() - began
        priority = BACKWARD if isinstance(call, Backward) else FORWARD
        computed = await alive_until(stream, self._turns.run(priority, computing))
        for kind in set(computed.refused):
            self._judge.add(peer, kind)
        await self._send(call, computed, waited, stream)

    def _check(self, peer: str, call: Forward) -> None:
        if call.layer not in self._settings.layers:
            raise Refusal("unknown", f"layer {call.layer} has no experts")
        if call.samples:
            self._claims.add(peer, call, self.step)

    async def _arrived(self, call: Call, stream: Stream) -> Tensor:
        shape = sum(call.tokens), self._settings.width
        if not call.tokens:
            return torch.zeros(shape)
        async with asyncio.timeout(ARRIVING_SECONDS):
            return await Listening(stream, SILENT_SECONDS, SILENT_SECONDS).heard(receive_tensor(stream, shape))

    def _computing(self, peer: str, call: Call, came: Tensor) -> Callable[[], Computed]:
        """What the device is to do; raises Refusal for what cannot be right."""
        if isinstance(call, Backward):
            return partial(self._backward, peer, call, unscaled(came.float(), call.exponent))
        inputs = came.float()
        if len(inputs) and self._usual[call.layer].absurd(peer, float(inputs.norm()) / len(inputs) ** 0.5):
            raise Refusal("absurd", "tokens that are far larger than usual")
        return partial(self._forward, peer, call, inputs)

    async def _reached(self, call: Forward) -> None:
        """Wait until the experts have taken the step before the one that the call is for, if they are about to: a
        trainer may hear of a step before a host does. If that takes too long, they answer as they are."""
        names, until = self._names(call), time.monotonic() + STEP_SECONDS
        while call.step - 2 in self._bank.steps(names) and time.monotonic() < until:
            await asyncio.sleep(LOOK_SECONDS)

    def _forward(self, peer: str, call: Forward, inputs: Tensor) -> Computed:
        made = Computed([], [], [], [], self._steps())
        microbatch = Microbatch(call.step, call.samples) if call.samples else None
        for at, (name, given) in enumerate(zip(self._names(call), inputs.split(call.tokens), strict=True)):
            with _refusing(made.refused):
                output = self._bank.output(name, given)
                if call.keep:
                    made.tickets.append(self._bank.keep(name, given.clone(), microbatch, peer))
                made.outputs.append(output)
                made.answered.append(at)
                if microbatch is not None:
                    self.load.add(peer, name, len(given), max(self._bank.steps([name]), default=0))
        made.steps.update(self._steps())
        return made

    def _backward(self, peer: str, call: Backward, gradients: Tensor) -> Computed:
        made = Computed([], [], [], [], self._steps())
        for at, (ticket, gradient) in enumerate(zip(call.tickets, gradients.split(call.tokens), strict=True)):
            with _refusing(made.refused):
                made.outputs.append(self._bank.learn(ticket, gradient, peer))
                made.answered.append(at)
        made.steps.update(self._steps())
        return made

    def _names(self, call: Forward) -> Sequence[ExpertName]:
        _, columns = self._settings.grid
        return [ExpertName(call.layer, *divmod(cell, columns)) for cell in call.cells]

    async def _send(self, call: Call, computed: Computed, waited: float, stream: Stream) -> None:
        output: Packed | None = None
        exponent = 0
        if computed.outputs:
            together = torch.cat(computed.outputs)
            if isinstance(call, Backward):
                output, exponent = scaled(together, self._form)
            else:
                output = packed(in_form(together, self._form), self._form)
        answer = Answer(
            answered=tuple(computed.answered),
            tickets=tuple(computed.tickets),
            exponent=exponent,
            step=computed.steps.pop() if len(computed.steps) == 1 else None,
            waited=waited,
        )
        await stream.send(encode(answer))
        if output is not None:
            await send_packed(stream, output)


@contextmanager
def _refusing(refused: list[Kind]) -> Iterator[None]:
    """One expert of a call may refuse it, or fail, and the others not."""
    try:
        yield
    except experts.Refused as error:
        refused.append(_KINDS[error.kind])
    except Exception as error:
        _log.warning("an expert fails: %r", error)
        refused.append("full" if out_of_memory(error) else "failed")


@contextmanager
def _within_memory() -> Iterator[None]:
    """What this machine has no memory for is refused."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise Refusal("full", "there is no memory for it") from None
