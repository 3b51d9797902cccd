"""A host, as a trainer calls it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dedloc_kit.swarm.experts.deadline import MAX_SECONDS, Deadline
from dedloc_kit.swarm.experts.protocol import Answer, Backward, Call, Forward, receive_reply
from dedloc_kit.swarm.experts.service import ExpertService
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.remote.judging import Refused
from dedloc_kit.swarm.remote.lines import Lines, Opener
from dedloc_kit.swarm.remote.tensors import BadTensor, Packed, receive_tensor, send_packed, unscaled


class CallFailed(Exception):
    """A host did not answer, or not rightly.

    :ivar kind: `late`, `gone`, `refused`, or what is wrong with its answer
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind

    @property
    def wrong(self) -> bool:
        """Would no honest host have done so?"""
        return self.kind not in ("late", "gone", "refused")


class HostClient:
    """Lines to it stay open.

    :param width: of a token
    """

    def __init__(self, opener: Opener, peer: str, width: int) -> None:
        self.peer = peer
        self._width = width
        self._lines = Lines(opener, peer, ExpertService, (MAX_SECONDS, MAX_SECONDS))
        self._deadlines = {Forward: Deadline(), Backward: Deadline()}

    def deadline(self, call: Call) -> float | None:
        """Seconds for such a call; none before anything is known."""
        return self._deadlines[type(call)].seconds(sum(call.tokens))

    async def call(self, call: Call, content: Packed | None, seconds: float) -> tuple[Answer, list[Tensor]]:
        """What the experts that answer have made of it, float32 and finite; raises CallFailed.

        :param content: none in a call of nothing
        :param seconds: for the whole call
        """
        began, deadline = time.monotonic(), self._deadlines[type(call)]
        with _failing():
            try:
                async with asyncio.timeout(seconds) as whole, self._lines.use() as (stream, _):
                    answered = await self._call(call, content, stream)
            except TimeoutError:
                if not whole.expired():
                    raise
                deadline.late()
                raise CallFailed("late", f"it has not answered within {seconds:.1f} s") from None
        if call.tokens:
            deadline.took(sum(call.tokens), max(0.0, time.monotonic() - began - answered[0].waited))
        return answered

    async def close(self) -> None:
        await self._lines.close()

    async def _call(self, call: Call, content: Packed | None, stream: Stream) -> tuple[Answer, list[Tensor]]:
        await stream.send(encode(call))
        if content is not None:
            await send_packed(stream, content)
        reply = await receive_reply(stream)
        if isinstance(reply, Refused):
            raise CallFailed("refused", f"it refuses ({reply.why}): {reply.text}")
        tickets = len(reply.answered) if isinstance(call, Forward) and call.keep else 0
        if len(reply.tickets) != tickets or not _in_order(reply.answered, len(call.tokens)):
            raise CallFailed("nonsense", "its answer is not one to this call")
        if not reply.answered:
            return reply, []
        tokens = [call.tokens[at] for at in reply.answered]
        outputs = unscaled((await receive_tensor(stream, (sum(tokens), self._width))).float(), reply.exponent)
        return reply, list(torch.split(outputs, tokens))


def _in_order(places: tuple[int, ...], count: int) -> bool:
    return all(a < b for a, b in zip((-1, *places), (*places, count), strict=False))


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except BadTensor as error:
        raise CallFailed(error.kind, str(error)) from None
    except (OSError, EOFError) as error:
        raise CallFailed("gone", str(error) or repr(error)) from None
    except ValueError as error:
        raise CallFailed("nonsense", str(error)) from None
