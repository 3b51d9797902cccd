"""One server's part of a client's session."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from dedloc_kit.blocks.adapters.adapters import Adapter
from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.remote.lines import Line, Opener
from dedloc_kit.swarm.remote.listening import Listening
from dedloc_kit.swarm.remote.tensors import receive_tensor, send_content, send_tensor
from dedloc_kit.swarm.serving.protocol import (
    Backward,
    Done,
    Kind,
    Neighbours,
    Open,
    Opened,
    Output,
    Pass,
    Redirect,
    Refused,
    Step,
    Wanted,
    receive_reply,
)
from dedloc_kit.swarm.serving.server.adapters import by_name, numbers
from dedloc_kit.swarm.serving.server.server import SpanService

MIN_PATIENCE, MAX_PATIENCE = 5.0, 30.0
"""Seconds of silence after which a server is taken for gone: between these, by how long it was silent before. One that
computes says every second that it is still here."""
TAKING = 10.0
"""Seconds for a message to be taken."""
LONGEST_ANSWER = 300.0
"""Seconds, also for one that says all the time that it is still here."""


class LegFailed(Exception):
    """A server did not answer, or not rightly.

    :ivar why: if it refused
    """

    def __init__(self, server: str, reason: str, why: Kind | None = None) -> None:
        super().__init__(f"{server}: {reason}")
        self.server, self.why = server, why


class Leg:
    """Layers begin..end of a route, by one server.

    :ivar neighbours: what the server was told of them
    """

    def __init__(self, server: str, opened: Open, line: Line, adapter: Adapter | None) -> None:
        self.server, self.opened = server, opened
        self.begin, self.end = opened.begin, opened.end
        self.neighbours = opened.neighbours
        self._line, self._adapter = line, adapter
        self._listening = Listening(line.stream, MIN_PATIENCE, MAX_PATIENCE)
        self._shapes: dict[int, Sequence[int]] = {}  # of the last steps' outputs, by number

    @classmethod
    async def open(cls, opener: Opener, server: str, question: Open, adapter: Adapter | None = None) -> "Leg":
        """Raises LegFailed, as all that it does.

        :param adapter: what these layers need of it
        """
        with _blaming(server):
            line = await Line.open(opener, server, SpanService, encode(question))
            leg = cls(server, question, line, adapter)
            try:
                reply = await leg._listening.heard(receive_reply(leg._line.stream))
                if isinstance(reply, Wanted) and adapter is not None:
                    await leg._send(adapter)
                    reply = await leg._listening.heard(receive_reply(leg._line.stream))
                if not isinstance(reply, Opened):
                    raise _not_expected(server, reply)
            except BaseException:
                await leg.close()
                raise
            return leg

    async def ask(self, record: Step | Pass | Backward | Redirect, *tensors: Tensor) -> None:
        stream = self._line.stream
        with _blaming(self.server):
            async with asyncio.timeout(TAKING):
                await stream.send(encode(record))
            for tensor in tensors:
                await send_tensor(stream, tensor, TAKING, self.opened.form)

    async def answer(self, number: int, shape: Sequence[int] | None) -> tuple[Tensor | None, bool]:
        """The output of a step, and whether the next server has it as well.

        :param number: of the step, 0 for what has none
        :param shape: None if no output is to come
        """
        stream, output = self._line.stream, None
        if number and shape:
            self._shapes = {known: self._shapes[known] for known in sorted(self._shapes)[-1:]} | {number: shape}
        with _blaming(self.server):
            async with asyncio.timeout(LONGEST_ANSWER):
                while True:
                    match reply := await self._listening.heard(receive_reply(stream)):
                        case Output(number=given):  # of the last step again, if it came from two sides
                            expected = shape if given == number else self._shapes.get(given)
                            if expected is None:
                                raise ValueError("an output that was not asked for")
                            tensor = await self._listening.heard(receive_tensor(stream, expected))
                            output = tensor if given == number else output
                        case Done(number=given, pushed=pushed) if given == number:
                            if shape is not None and output is None:
                                raise ValueError("it has done a step without an output")
                            return output, pushed
                        case Done(number=given) if given in self._shapes:
                            pass
                        case _:
                            raise _not_expected(self.server, reply)

    async def gradients(self, shape: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
        """The answer to Backward: the gradient of the inputs, and those of the adapter's tensors by their names."""
        output, _ = await self.answer(0, shape)
        assert output is not None
        if self._adapter is None:
            return output, {}
        form = self._adapter.form
        with _blaming(self.server):
            async with asyncio.timeout(LONGEST_ANSWER):
                return output, by_name(
                    form, await self._listening.heard(receive_tensor(self._line.stream, (numbers(form),)))
                )

    async def redirect(self, neighbours: Neighbours) -> None:
        await self.ask(Redirect(neighbours=neighbours))
        await self.answer(0, None)
        self.neighbours = neighbours

    async def close(self) -> None:
        await self._line.close()

    async def _send(self, adapter: Adapter) -> None:
        async with asyncio.timeout(TAKING):
            await self._line.stream.send(encode(adapter.form))
        await send_content(self._line.stream, memoryview(adapter.pack()), TAKING)


def part_of(adapter: Adapter | None, span: LayerRange) -> Adapter | None:
    """What a leg of these layers needs of it."""
    return None if adapter is None else adapter.part(span.begin, span.end)


@contextmanager
def _blaming(server: str) -> Iterator[None]:
    try:
        yield
    except (OSError, EOFError, ValueError) as error:
        raise LegFailed(server, str(error) or repr(error)) from None


def _not_expected(server: str, reply: object) -> LegFailed:
    if isinstance(reply, Refused):
        return LegFailed(server, f"it refuses ({reply.why}): {reply.text}", reply.why)
    return LegFailed(server, f"it sends {type(reply).__name__}, which was not asked for")
