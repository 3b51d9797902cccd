"""Experts as bytes."""

import asyncio
from typing import Any, cast

import torch

from dedloc_kit.experts.bank import Bank
from dedloc_kit.swarm.experts.copies import Coder, send_state
from dedloc_kit.swarm.network.service import Stream
from tests.tiny import WIDTH
from tests.tiny_mixed import mixed_run


class Pipe:
    """What was sent, message by message."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []

    async def send(self, message: Any) -> None:
        self._messages.append(bytes(message))

    async def receive(self, most: int) -> bytes:
        message = self._messages.pop(0)
        assert len(message) <= most
        return message


def test_an_expert_that_comes_lies_where_the_others_do() -> None:
    vectors = list[torch.Tensor]()

    def room(size: int) -> torch.Tensor:
        vectors.append(torch.zeros(size))
        return vectors[-1]

    bank, pipe = Bank(mixed_run()), cast(Stream, Pipe())
    bank.hold_all()
    sent, _ = bank.state(bank.names[1])

    async def travel() -> dict[str, torch.Tensor]:
        await send_state(pipe, sent)
        return await Coder(bank.like(), WIDTH, "8bit", room).receive_state(pipe)

    came = asyncio.run(travel())
    assert came.keys() == sent.keys()
    assert all(torch.equal(came[name], each) for name, each in sent.items())
    (vector,) = vectors
    assert all(each.untyped_storage().data_ptr() == vector.data_ptr() for each in came.values())
