"""What trainers and hosts say to each other.

A trainer opens streams to the service "experts" of a host. On each it sends calls, one after the other: a Forward with
the tokens that go into experts of one layer, or a Backward with the gradients of what came out of some, in one tensor,
expert by expert. Each is answered by an Answer, and what those who answer have made of it in one tensor behind it, or
by a Refused, after which the stream is closed. A Forward of nothing is answered with nothing: whoever does so is there.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from dedloc_kit.records.record import Count, Record, Seconds
from dedloc_kit.swarm.network.service import Stream, decode
from dedloc_kit.swarm.remote.judging import Refused
from dedloc_kit.swarm.remote.tensors import Exponent

MAX_CELLS = 64 * 64
"""In one call."""
MAX_HEAD_BYTES = 80_000

_Counts = Annotated[tuple[Count, ...], Field(max_length=MAX_CELLS, strict=False)]
_Tokens = Annotated[tuple[Annotated[int, Field(ge=1, le=2**24)], ...], Field(max_length=MAX_CELLS, strict=False)]


class Forward(Record):
    """Tokens for experts of a layer."""

    kind: Literal["forward"] = "forward"
    layer: Count
    cells: _Counts
    """Of the layer's grid, counted row by row."""
    tokens: _Tokens
    """Of each."""
    keep: bool
    """Does a backward call follow?"""
    step: Count = 0
    """The global step that its gradients are to be part of."""
    samples: Count = 0
    """That they are the mean of; of no step, and added to nothing, if there are none."""

    @model_validator(mode="after")
    def _tokens_for_each(self) -> Self:
        _check(self.cells, self.tokens)
        return self


class Backward(Record):
    """Gradients, means over the samples of the forward call, of what came out of experts."""

    kind: Literal["backward"] = "backward"
    tickets: _Counts
    """That the forward call was answered with."""
    tokens: _Tokens
    exponent: Exponent = 0

    @model_validator(mode="after")
    def _tokens_for_each(self) -> Self:
        _check(self.tickets, self.tokens)
        return self


class Answer(Record):
    kind: Literal["answer"] = "answer"
    answered: _Counts = ()
    """Which of the experts in the call have, as their places in it, from 0 on in their order."""
    tickets: _Counts = ()
    """Of each of these, for the backward call, if one follows."""
    exponent: Exponent = 0
    """Of gradients."""
    step: Count | None = None
    """That all experts of this host had taken, whenever they computed this; none if it was not the same one."""
    waited: Seconds = 0.0
    """Until the experts had the step before the one that the call is for."""


Call = Forward | Backward
_CALLS: TypeAdapter[Any] = TypeAdapter(Annotated[Call, Field(discriminator="kind")])
_REPLIES: TypeAdapter[Any] = TypeAdapter(Annotated[Answer | Refused, Field(discriminator="kind")])


async def receive_call(stream: Stream) -> Call:
    """Raises as `Stream.receive_record`."""
    call: Call = await _receive(stream, _CALLS)
    return call


async def receive_reply(stream: Stream) -> Answer | Refused:
    """Raises as `Stream.receive_record`."""
    reply: Answer | Refused = await _receive(stream, _REPLIES)
    return reply


async def _receive(stream: Stream, kinds: TypeAdapter[Any]) -> Any:
    try:
        return kinds.validate_python(decode(await stream.receive(MAX_HEAD_BYTES)))
    except ValidationError as error:
        raise ValueError(f"it is none of what is sent here: {error!s:.200}") from None


def _check(named: tuple[int, ...], tokens: tuple[int, ...]) -> None:
    if len(set(named)) < len(named) or len(named) != len(tokens):
        raise ValueError("each expert is to be named once, with its tokens")
