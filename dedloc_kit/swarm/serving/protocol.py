"""What clients and servers of a model's layers say to each other.

A client opens a stream to the service "span" of each server of its route: Open, answered by Opened, where need be after
the server has Wanted the client's adapter. Then it sends Steps with the hidden states that go into the layers, and gets
each answered by an Output with the hidden states after them, and Done. A server also hands its output to the next one,
on a stream to that one's service "push", with the same Step in front; so the client sends to the first server and hears
from all.
"""

from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from dedloc_kit.blocks.past import MAX_ROWS, Past
from dedloc_kit.blocks.plans.plan import MAX_LAYERS
from dedloc_kit.records.record import Digest, PeerId, Reason, Record
from dedloc_kit.swarm.network.service import MAX_RECORD_BYTES, Stream, decode
from dedloc_kit.swarm.remote.tensors import Form

MAX_LENGTH = 2**20
_BEAMS = 16
Kind = Literal[
    "full",
    "version",
    "span",
    "length",
    "shape",
    "values",
    "positions",
    "past",
    "order",
    "push",
    "moving",
    "adapter",
    "nonsense",
    "failed",
]
"""Why something is refused."""
SessionId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Layer = Annotated[int, Field(ge=0, le=MAX_LAYERS)]
Rows = Annotated[int, Field(ge=1, le=MAX_ROWS)]
Tokens = Annotated[int, Field(ge=1, le=MAX_LENGTH)]
Number = Annotated[int, Field(ge=0, le=2**53)]


class Refusal(ValueError):
    """A peer asks for what it does not get."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind: Kind = kind


class Neighbours(Record):
    """Of a session on one server: who may push to it, and to whose session its output is pushed; empty for nobody."""

    previous: PeerId = ""
    next: PeerId = ""
    next_session: Digest = ""


class Open(Record):
    """A session: room for so many rows of so many tokens."""

    session: SessionId
    version: Digest
    begin: Layer
    end: Layer
    length: Tokens
    rows: Rows
    form: Form
    """Of the server's output."""
    neighbours: Neighbours
    adapter: Digest = ""
    """Of the client's adapter for these layers, with which everything is computed; empty for none."""


class Call(Record):
    """Hidden states [rows, tokens, hidden] that come behind it, and what belongs to them."""

    rows: Rows
    tokens: Tokens
    past: Annotated[int, Field(ge=0, le=MAX_LENGTH)] = 0
    """Tokens before them."""
    mask: bytes | None = None
    """Of past and new tokens, bit by bit; empty: all ones."""
    positions: bytes | None = None
    """int32, little-endian."""

    def check(self, rows: int, length: int) -> None:
        """Raises Refusal for what does not fit into a session of so many rows and tokens, or contradicts itself."""
        if self.past + self.tokens > length:
            raise Refusal("length", f"{self.past} and {self.tokens} tokens where {length} are agreed")
        if self.rows > rows:
            raise Refusal("shape", f"{self.rows} rows where {rows} are right")
        if self.mask and len(self.mask) != -(-self.rows * (self.past + self.tokens) // 8):
            raise Refusal("shape", f"a mask of {len(self.mask)} bytes")
        if self.positions is not None:
            if len(self.positions) != 4 * self.rows * self.tokens:
                raise Refusal("shape", f"positions of {len(self.positions)} bytes")
            positions = self.position_ids()
            assert positions is not None
            if not (int(positions.min()) >= 0 and int(positions.max()) < length):
                raise Refusal("positions", f"positions from {positions.min()} to {positions.max()}, of {length}")

    def follows(self) -> Past:
        """Raises ValueError for what cannot be."""
        return Past(self.past)

    def attention_mask(self) -> Tensor | None:
        if self.mask is None:
            return None
        shape = self.rows, self.past + self.tokens
        if not self.mask:
            return torch.ones(shape, dtype=torch.long)
        bits = np.unpackbits(np.frombuffer(self.mask, np.uint8), count=shape[0] * shape[1])
        return torch.from_numpy(bits.astype(np.int64)).reshape(shape)

    def position_ids(self) -> Tensor | None:
        if self.positions is None:
            return None
        return torch.from_numpy(np.frombuffer(self.positions, "<i4").astype(np.int64)).reshape(self.rows, self.tokens)


class Step(Call):
    """Goes on from what the session remembers, and is remembered."""

    kind: Literal["step"] = "step"
    number: Number
    """Higher from step to step. The last one again: the same answer. 0: a past that a new server has to catch up with,
    which is pushed to nobody."""
    past_rows: Annotated[bytes, Field(max_length=2 * MAX_ROWS)] = b""
    """Which rows of the past its rows follow, uint16, little-endian; empty: their own."""
    undoable: bool = False
    output: bool = True
    """Does the client want it?"""

    def follows(self) -> Past:
        """Raises ValueError for what cannot be."""
        rows = tuple(np.frombuffer(self.past_rows, "<u2").tolist()) if self.past_rows else None
        return Past(self.past, rows, self.undoable)


class Pass(Call):
    """Forward without a past; nothing is remembered."""

    kind: Literal["pass"] = "pass"


class Backward(Call):
    """The gradients of outputs come behind the inputs, and those of the inputs are the answer. If the session has an
    adapter, those of its tensors come behind Done."""

    kind: Literal["backward"] = "backward"


class Redirect(Record):
    """From now on the session has these neighbours."""

    kind: Literal["redirect"] = "redirect"
    neighbours: Neighbours


class PushOpen(Record):
    """What comes on this stream is for a client's session."""

    client: PeerId
    session: SessionId


class Opened(Record):
    kind: Literal["opened"] = "opened"


class Wanted(Record):
    """The session's adapter is not known here: its AdapterForm is to come, and its bytes behind it."""

    kind: Literal["wanted"] = "wanted"


class Refused(Record):
    kind: Literal["refused"] = "refused"
    why: Kind
    text: Reason = ""


class Output(Record):
    """The tensor comes behind it."""

    kind: Literal["output"] = "output"
    number: Number


class Done(Record):
    kind: Literal["done"] = "done"
    number: Number
    """0 for what has none."""
    pushed: bool = False
    """Has the next server been given the output?"""


Request = Step | Pass | Backward | Redirect
Reply = Opened | Wanted | Refused | Output | Done
_REQUESTS: TypeAdapter[Any] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_REPLIES: TypeAdapter[Any] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def call(hidden: Tensor, mask: Tensor | None, positions: Tensor | None, past: int = 0) -> dict[str, Any]:
    """The fields of a Call."""
    rows, tokens = hidden.shape[:2]
    fields: dict[str, Any] = {"rows": rows, "tokens": tokens, "past": past}
    if mask is not None:
        bits = mask.to("cpu").bool().numpy()
        fields["mask"] = b"" if bits.all() else np.packbits(bits).tobytes()
    if positions is not None:
        fields["positions"] = positions.to("cpu").expand(rows, tokens).numpy().astype("<i4").tobytes()
    return fields


def request_bytes(rows: int, length: int) -> int:
    """No request of a session is longer, also if its rows have become more."""
    return MAX_RECORD_BYTES + 2 * MAX_ROWS + 5 * max(rows, _BEAMS) * length


async def receive_request(stream: Stream, limit: int) -> Request:
    """Raises as `Stream.receive_record`."""
    request: Request = _parse(_REQUESTS, await stream.receive(limit))
    return request


async def receive_reply(stream: Stream) -> Reply:
    """Raises as `Stream.receive_record`."""
    reply: Reply = _parse(_REPLIES, await stream.receive(MAX_RECORD_BYTES))
    return reply


def _parse(kinds: TypeAdapter[Any], data: bytes) -> Any:
    try:
        return kinds.validate_python(decode(data))
    except ValidationError as error:
        raise ValueError(f"no message of a session: {error!s:.200}") from None
