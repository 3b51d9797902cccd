"""Experts as bytes."""

import asyncio
from typing import Any, cast

import pytest
import torch

from dedloc_kit.experts.bank import Bank
from dedloc_kit.swarm.experts.copies import Coder, Wanted, send_state
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


@pytest.mark.parametrize(("digests", "follow"), [(["0" * 64], False), (["0" * 64] * 2, True), (["x", "y"], False)])
def test_digests_are_of_all_experts_that_are_asked_for_and_of_none_that_is_to_be_followed(
    digests: list[str], follow: bool
) -> None:
    wanted = {"experts": [0, 3], "steps": [1, 1], "follow": follow}
    assert Wanted.parse(wanted).follow is follow
    with pytest.raises(ValueError, match="digest"):
        Wanted.parse({**wanted, "digests": digests})
