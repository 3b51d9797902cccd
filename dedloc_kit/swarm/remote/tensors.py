"""Tensors on a stream: a head, and raw bytes behind it in messages that a slow reader is noticed by.

The receiver says which shape is right before any byte is taken.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from dedloc_kit.records.record import Record
from dedloc_kit.swarm.network.service import SEND_SECONDS, Stream, encode
from dedloc_kit.swarm.remote import activations
from dedloc_kit.swarm.transfer.protocol import MESSAGE_BYTES

Form = Literal["float16", "bfloat16", "float32", "8bit"]
"""In which activations travel; see `activations` for the last one."""
DTYPES: dict[Form, torch.dtype] = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
FORMS: Mapping[str, Form] = {"8bit": "8bit", "float16": "float16", "none": "float32"}
"""By what a run's file says of its activations."""
MAX_EXPONENT = 1000
Exponent = Annotated[int, Field(ge=-MAX_EXPONENT, le=MAX_EXPONENT)]
"""A gradient is divided by two to the power of this on its way, so that a small one does not vanish."""
_FORMS = {dtype: form for form, dtype in DTYPES.items()}
_LARGEST = torch.finfo(torch.float16).max
_MAX_HEAD_BYTES = 200
LARGE = 2**20
"""Bytes from which on a tensor is unpacked in a thread, so that other streams need not wait for it."""


class TensorHead(Record):
    """What the bytes behind it are."""

    dtype: Form
    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=2**31)], ...], Field(max_length=4)]


class BadTensor(ValueError):
    """A tensor that is not the one that was to come: `shape` or `values` says what is wrong with it."""

    def __init__(self, kind: Literal["shape", "values"], text: str) -> None:
        super().__init__(text)
        self.kind = kind


def in_form(tensor: Tensor, form: Form) -> Tensor:
    """As it travels: on the CPU; in bfloat16 instead of float16 where a number would become infinite there. What is to
    travel in 8 bits is float32 until it is sent."""
    tensor = tensor.detach().to("cpu")
    if form == "float16" and tensor.dtype != torch.float16 and not tensor.abs().amax() <= _LARGEST:
        form = "bfloat16"
    return tensor.to(DTYPES.get(form, torch.float32)).contiguous()


class Packed(NamedTuple):
    """A tensor as its bytes travel."""

    head: TensorHead
    content: memoryview


def packed(tensor: Tensor, form: Form | None = None) -> Packed:
    """What `in_form` gave; raises ValueError if 8 bits cannot hold it.

    :param form: where that is 8 bits
    """
    content: Any = activations.pack(tensor) if form == "8bit" else tensor.reshape(-1).view(torch.uint8).numpy()
    dtype = form if form == "8bit" else _FORMS[tensor.dtype]
    return Packed(TensorHead(dtype=dtype, shape=tuple(tensor.shape)), memoryview(content))


def unpacked(sent: Packed) -> Tensor:
    """The way back, of finite numbers; raises BadTensor."""
    head, content = sent
    if head.dtype == "8bit":
        try:
            return activations.unpack(bytes(content), head.shape)
        except ValueError as error:
            raise BadTensor("values", str(error)) from None
    tensor = torch.frombuffer(content, dtype=DTYPES[head.dtype]).reshape(head.shape)
    if not tensor.isfinite().all():
        raise BadTensor("values", "a tensor with NaN or infinity")
    return tensor


def scaled(gradient: Tensor, form: Form) -> tuple[Packed, int]:
    """A gradient of finite numbers as it travels, and the exponent that its head has to name."""
    largest = float(gradient.abs().amax())
    exponent = max(-MAX_EXPONENT, min(math.frexp(largest)[1], MAX_EXPONENT))
    return packed(in_form(torch.ldexp(gradient, torch.tensor(-exponent)), form), form), exponent


def unscaled(gradient: Tensor, exponent: int) -> Tensor:
    """The way back; raises BadTensor if a number is too large."""
    gradient = torch.ldexp(gradient, torch.tensor(exponent))
    if not gradient.isfinite().all():
        raise BadTensor("values", "a gradient with infinity")
    return gradient


async def send_tensor(stream: Stream, tensor: Tensor, seconds: float = SEND_SECONDS, form: Form | None = None) -> None:
    """Send what `in_form` gave; raises OSError as `Stream.send`.

    :param seconds: for the other side to take a message
    :param form: where that is 8 bits
    """
    await send_packed(stream, packed(tensor, form), seconds)


async def send_packed(stream: Stream, tensor: Packed, seconds: float = SEND_SECONDS) -> None:
    """The same of what `packed` gave."""
    await stream.send(encode(tensor.head))
    await send_content(stream, tensor.content, seconds)


async def receive_tensor(stream: Stream, shape: Sequence[int]) -> Tensor:
    """A tensor of this shape, of finite numbers, in whichever form; raises BadTensor, and as `Stream.receive`."""
    head = await stream.receive_record(TensorHead, _MAX_HEAD_BYTES)
    if head.shape != tuple(shape):
        raise BadTensor("shape", f"a tensor of shape {head.shape} where {tuple(shape)} is right")
    in_blocks = head.dtype == "8bit"
    size = activations.size(shape) if in_blocks else math.prod(shape) * DTYPES[head.dtype].itemsize
    sent = Packed(head, memoryview(await receive_content(stream, size)))
    return unpacked(sent) if size < LARGE else await asyncio.to_thread(unpacked, sent)


async def send_content(stream: Stream, content: memoryview, seconds: float = SEND_SECONDS) -> None:
    """Bytes in messages; see `send_tensor`."""
    for start in range(0, len(content), MESSAGE_BYTES):
        async with asyncio.timeout(seconds):
            await stream.send(content[start : start + MESSAGE_BYTES])


async def receive_content(stream: Stream, size: int) -> bytearray:
    """So many of them; raises as `Stream.receive`."""
    content = bytearray(size)
    await fill(stream, memoryview(content))
    return content


async def fill(stream: Stream, content: memoryview) -> None:
    """The same to where they are to lie."""
    filled = 0
    while filled < len(content):
        piece = await stream.receive(min(MESSAGE_BYTES, len(content) - filled))
        content[filled : filled + len(piece)] = piece
        filled += len(piece)
