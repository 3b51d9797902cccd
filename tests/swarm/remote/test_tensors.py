"""Tensors arrive as they were sent, or are refused before they take memory."""

import asyncio
import time
import tracemalloc
from collections.abc import Sequence

import pytest
import torch

from dedloc_kit.records.record import Record
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.remote import activations
from dedloc_kit.swarm.remote.tensors import BadTensor, Form, TensorHead, in_form, receive_tensor, send_tensor
from tests.swarm.remote.streams import stream_pair


async def there(tensor: torch.Tensor, shape: Sequence[int] | None = None) -> torch.Tensor:
    async with stream_pair() as (one, other):
        _, received = await asyncio.gather(send_tensor(one, tensor), receive_tensor(other, shape or tensor.shape))
        return received


@pytest.mark.parametrize("form", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(1, 1, 4), (3, 700, 333)])
def test_a_tensor_arrives_as_it_was_sent(form: Form, shape: tuple[int, ...]) -> None:
    sent = in_form(torch.randn(shape), form)
    received = asyncio.run(there(sent))
    assert received.dtype == sent.dtype
    assert torch.equal(received, sent)


def test_in_8_bits_a_tensor_arrives_as_it_is_packed() -> None:
    async def sent() -> torch.Tensor:
        async with stream_pair() as (one, other):
            sending = send_tensor(one, in_form(tensor, "8bit"), form="8bit")
            return (await asyncio.gather(sending, receive_tensor(other, tensor.shape)))[1]

    tensor = torch.randn(2, 3, 700)
    received = asyncio.run(sent())
    assert torch.equal(received, activations.unpack(activations.pack(tensor), tensor.shape))
    assert 0 < (received - tensor).norm() < 0.01 * tensor.norm()


def test_packed_nonsense_is_refused() -> None:
    async def receive() -> None:
        async with stream_pair() as (one, other):
            await one.send(encode(TensorHead(dtype="8bit", shape=(2, 64))))
            await one.send(b"\xff" * activations.size((2, 64)))
            await receive_tensor(other, (2, 64))

    with pytest.raises(BadTensor, match="channel 65535 is kept") as caught:
        asyncio.run(receive())
    assert caught.value.kind == "values"


def test_what_would_become_infinite_in_float16_travels_as_bfloat16() -> None:
    assert in_form(torch.tensor([6e4]), "float16").dtype == torch.float16
    large = in_form(torch.tensor([1.0, -7e4]), "float16")
    assert large.dtype == torch.bfloat16
    assert large.isfinite().all()
    assert in_form(large, "float16").dtype == torch.bfloat16


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(BadTensor, match="NaN") as caught:
        asyncio.run(there(torch.tensor([[0.0, wrong]])))
    assert caught.value.kind == "values"


def test_another_shape_than_the_right_one_is_refused_before_it_takes_memory() -> None:
    async def receive(head: Record) -> None:
        async with stream_pair() as (one, other):
            await one.send(encode(head))
            await receive_tensor(other, (2, 3))

    tracemalloc.start()
    with pytest.raises(BadTensor, match="where \\(2, 3\\) is right") as caught:
        asyncio.run(receive(TensorHead(dtype="float32", shape=(2**20, 2**10))))
    assert caught.value.kind == "shape"
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_more_bytes_than_its_shape_has_are_refused() -> None:
    async def receive() -> None:
        async with stream_pair() as (one, other):
            await one.send(encode(TensorHead(dtype="float32", shape=(2, 3))))
            await one.send(bytes(25))
            await receive_tensor(other, (2, 3))

    with pytest.raises(ValueError, match="a message of 25 bytes is announced where at most 24"):
        asyncio.run(receive())


def test_a_reader_that_does_not_take_it_is_noticed() -> None:
    async def send() -> None:
        async with stream_pair() as (one, _):
            await send_tensor(one, torch.zeros(2**22), seconds=0.2)

    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(send())
    assert time.monotonic() - begun < 30
