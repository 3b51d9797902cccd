"""What drivers and stage peers say to each other.

A driver opens streams to the service "stage" of a stage peer. On each it sends Calls, one after the other: first what
the stage needs of the batch, then the hidden states that go into it, in a backward call of any stage but the last the
gradient of what came out of it. Each is answered by an Answer, with hidden states or the gradient of the input behind
it, or by a Refused, after which the stream is closed. On one more stream, to the service "following", the stage peer
says which step it holds (Held), and the driver what it has begun (Told).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from dedloc_kit.records.record import Count, Digest, Record, Seconds
from dedloc_kit.records.stages import Begun, Stage
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES, Stream, decode, encode
from dedloc_kit.swarm.remote import activations
from dedloc_kit.swarm.remote.judging import Refused
from dedloc_kit.swarm.remote.tensors import (
    DTYPES,
    Exponent,
    Form,
    Packed,
    receive_content,
    receive_tensor,
    send_content,
    send_packed,
)

CALLS_AT_A_TIME = 4
"""Of one driver at one stage peer: one is computed, the others are on their way."""

Batch = Mapping[str, Tensor]


class Cut(Protocol):
    """What the calls need of a task's stage (`tasks.StageTask`)."""

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def takes(self) -> tuple[str, ...]: ...

    def check(self, batch: Any) -> None: ...

    def forward(self, model: nn.Module, hidden: Tensor | None, batch: Any) -> Tensor: ...


class Call(Record):
    """A microbatch [rows, length] at one stage."""

    what: Literal["forward", "backward"]
    stage: Stage
    number: Count
    """Of the microbatch, by its driver; a driver uses no number twice."""
    step: Count
    """Whose parameters it wants."""
    rows: Annotated[int, Field(ge=1, le=2**20)]
    length: Annotated[int, Field(ge=1, le=2**20)]
    exponent: Exponent = 0
    """Of the gradient."""
    adds: bool = True
    """Whether a backward call adds to the stage's gradients; else it is answered, and nothing more."""
    session: Digest = ""
    """For which it is sent, see `Held`: in another one it is refused. Any, if it is empty."""

    @property
    def samples(self) -> int:
        return self.rows


class Answer(Record):
    kind: Literal["answer"] = "answer"
    exponent: Exponent = 0
    """As of a call."""
    loss: Annotated[float, Field(ge=-1e9, le=1e9)] | None = None
    """Of the last stage."""
    seconds: Seconds
    """That it computed."""
    waiting: Count
    """Calls that are not done there."""


class Held(Record):
    """What a stage peer holds now."""

    stage: Stage
    step: Count
    session: Digest
    """Whoever begins another one has lost what it was sent before, as a process that begins anew, or on purpose, as one
    that stood still."""
    sketch: Annotated[tuple[float, ...], Field(max_length=8, strict=False)] = ()
    """Of the parameters, as in `Progress`."""
    waiting: Count
    """As in an answer. All drivers send calls, so what the last answer said is soon old."""


class Told(Record):
    """What a driver says to a stage peer that it follows."""

    begun: Begun
    gone: Digest = ""
    """The session in which the driver has taken this stage peer for gone: what it had sent was computed elsewhere. A
    stage peer that is still in it begins another one with this driver."""


Reply = Answer | Refused
_REPLIES: TypeAdapter[Any] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


async def receive_reply(stream: Stream) -> Reply:
    """Raises as `Stream.receive_record`."""
    try:
        reply: Reply = _REPLIES.validate_python(decode(await stream.receive(MAX_RECORD_BYTES)))
    except ValidationError as error:
        raise ValueError(f"no answer to a call: {error!s:.200}") from None
    return reply


class Content(NamedTuple):
    """What comes behind a call: `batch` as it travels, hidden states, and the gradient of what came out."""

    batch: bytes
    hidden: Packed | None
    gradient: Packed | None

    @property
    def size(self) -> int:
        """In bytes."""
        tensors = (self.hidden, self.gradient)
        return len(self.batch) + sum(len(tensor.content) for tensor in tensors if tensor is not None)


def answer_bytes(call: Call, stage: Cut, form: Form) -> int:
    """Of what comes behind the answer to a call."""
    if stage.number == (stage.count - 1 if call.what == "forward" else 0):
        return 0
    shape = call.rows, call.length, stage.width
    return activations.size(shape) if form == "8bit" else math.prod(shape) * DTYPES[form].itemsize


def part_of(batch: Batch, stage: Cut) -> bytes:
    """What a stage needs of a batch, as it travels: int32, little-endian, one tensor after the other."""
    return b"".join(batch[name].to("cpu").numpy().astype("<i4").tobytes() for name in stage.takes)


async def send_call(stream: Stream, call: Call, content: Content) -> None:
    await stream.send(encode(call))
    if content.batch:
        await send_content(stream, memoryview(content.batch))
    for tensor in (content.hidden, content.gradient):
        if tensor is not None:
            await send_packed(stream, tensor)


async def receive_batch(stream: Stream, call: Call, stage: Cut) -> Batch:
    """The tensors that the stage takes, int64 [rows, length]; they are not checked."""
    if not stage.takes:
        return {}
    size = len(stage.takes) * call.rows * call.length
    values = torch.from_numpy(np.frombuffer(await receive_content(stream, 4 * size), "<i4").astype(np.int64))
    return dict(zip(stage.takes, values.view(-1, call.rows, call.length), strict=True))


async def receive_hidden(stream: Stream, call: Call, stage: Cut) -> Tensor:
    """float32; raises as `receive_tensor`."""
    return (await receive_tensor(stream, (call.rows, call.length, stage.width))).float()
