"""Clients and servers of layers that take more than their part: memory, and the time of others."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import torch

from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.remote.tensors import TensorHead, receive_tensor, send_tensor
from dedloc_kit.swarm.serving.protocol import (
    Backward,
    Neighbours,
    Open,
    Opened,
    Output,
    Pass,
    PushOpen,
    Refused,
    Reply,
    Step,
    call,
    receive_reply,
)
from dedloc_kit.swarm.serving.server import chunks
from dedloc_kit.swarm.serving.server.computing import Computing, Priority
from dedloc_kit.swarm.serving.server.server import PushService, SpanService
from tests.blocks import tiny
from tests.blocks.test_ends import written
from tests.swarm.serving.local_swarm import TOKENS, VERSION, Swarm, two_servers

WIDTH = 32
TOKEN = torch.zeros(1, 1, WIDTH)
SESSIONS = [f"{number:032x}" for number in range(3)]


@pytest.fixture(scope="module")
def whole() -> Any:
    return tiny.model("Llama")


@pytest.fixture
def swarm(whole: Any) -> Iterator[Swarm]:
    with two_servers(whole) as swarm:
        swarm.known("mallory")
        yield swarm


@asynccontextmanager
async def session(
    swarm: Swarm, name: str, length: int, of: str = "mallory", server: str = "a"
) -> AsyncIterator[Stream]:
    """One of a client of this server, which says that it is also the server before it."""
    opening = Open(
        session=name,
        version=VERSION,
        begin=0,
        end=2,
        length=length,
        rows=1,
        form="float32",
        neighbours=Neighbours(previous=of),
    )
    async with swarm.network.endpoint(of).open(server, SpanService, encode(opening)) as stream:
        assert await receive_reply(stream) == Opened()
        yield stream


@asynccontextmanager
async def pushing(swarm: Swarm, name: str) -> AsyncIterator[Stream]:
    """A push stream for it, accepted."""
    opening = encode(PushOpen(client="mallory", session=name))
    async with swarm.network.endpoint("mallory").open("a", PushService, opening) as stream:
        assert await receive_reply(stream) == Opened()
        yield stream


async def begin(stream: Stream, asked: Step | Pass | Backward, share: float = 0.5) -> None:
    """Say it all, but send a part of the tensor only."""
    shape = asked.rows, asked.tokens, WIDTH
    await stream.send(encode(asked))
    await stream.send(encode(TensorHead(dtype="float32", shape=shape)))
    await stream.send(bytes(int(share * 4 * asked.tokens * WIDTH)))


async def ended(stream: Stream) -> None:
    with pytest.raises((EOFError, OSError)):
        await stream.receive(1)


def test_a_push_stream_ends_with_its_session(swarm: Swarm) -> None:
    async def attack() -> None:
        async with session(swarm, SESSIONS[0], 64) as client, pushing(swarm, SESSIONS[0]) as push:
            await begin(push, Step(rows=1, tokens=64, number=1))
            client.close()
            await ended(push)

    swarm.run(attack())
    assert torch.equal(written(swarm.model()), written(swarm.whole))


def test_a_session_has_one_push_stream_the_newest(swarm: Swarm) -> None:
    async def attack() -> None:
        async with session(swarm, SESSIONS[0], 64) as client, pushing(swarm, SESSIONS[0]) as first:
            await begin(first, Step(rows=1, tokens=64, number=1))
            async with pushing(swarm, SESSIONS[0]) as second:
                await ended(first)
                await second.send(encode(Step(**call(TOKEN, None, None), number=1)))
                await second.send(encode(TensorHead(dtype="float32", shape=(1, 1, WIDTH))))
                await second.send(bytes(4 * WIDTH))
                assert await receive_reply(client) == Output(number=1)

    swarm.run(attack())


@pytest.mark.parametrize("kind", ["step", "backward"])
def test_what_one_peer_sends_takes_its_part_of_the_memory_and_no_more(swarm: Swarm, kind: str) -> None:
    """It has three quarters of all cache tokens; twice as many in tensors that never end are too many."""
    tokens = TOKENS // 4
    step = Step(rows=1, tokens=tokens, number=1)
    asked = Backward(rows=1, tokens=tokens) if kind == "backward" else step

    async def attack(stack: AsyncExitStack) -> Reply:
        clients = [await stack.enter_async_context(session(swarm, name, tokens)) for name in SESSIONS]
        pushes = [await stack.enter_async_context(pushing(swarm, name)) for name in SESSIONS]
        for client, push in zip(clients, pushes, strict=True):
            await begin(client, asked)
            await begin(push, step)
        replies = {asyncio.create_task(receive_reply(client)) for client in clients}
        (first, *_), waiting = await asyncio.wait(replies, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return first.result()

    stack = AsyncExitStack()
    try:
        refused = swarm.run(attack(stack))
        assert isinstance(refused, Refused)
        assert refused.why == "full"
        assert torch.equal(written(swarm.model()), written(swarm.whole))
    finally:
        swarm.run(stack.aclose())


def test_who_is_refused_leaves_nothing_in_memory_while_its_stream_stays_open(swarm: Swarm) -> None:
    """24 streams of one key, each refused once most of a tensor had come, held 1.6 GB for ten seconds."""
    tokens = 3 * TOKENS // 4
    size = 4 * tokens * WIDTH

    async def attack(name: str) -> int:
        before, _ = tracemalloc.get_traced_memory()
        async with session(swarm, name, tokens) as client:
            await begin(client, Pass(rows=1, tokens=tokens))
            await client.send(bytes(size))
            refused = await receive_reply(client)
            assert isinstance(refused, Refused)
            assert refused.why == "nonsense"
            now, _ = tracemalloc.get_traced_memory()
            return now - before

    tracemalloc.start()
    try:
        swarm.run(attack(SESSIONS[0]))  # what the first one makes once
        assert swarm.run(attack(SESSIONS[1])) < size // 2
    finally:
        tracemalloc.stop()


class Between(Computing):
    """Does something before the second chunk of a call of training."""

    def __init__(self, act: Callable[[], Awaitable[object]]) -> None:
        super().__init__(chunk=8)
        self._act, self._trained = act, 0

    async def run(self, priority: int, function: Callable[[], Any]) -> Any:
        self._trained += priority == Priority.TRAINING
        if priority == Priority.TRAINING and self._trained == 2:
            await self._act()
        return await super().run(priority, function)


@pytest.mark.parametrize("kind", [Pass, Backward])
def test_an_honest_token_is_answered_between_the_chunks_of_a_long_call(
    swarm: Swarm, kind: type[Pass | Backward]
) -> None:
    """It waited for 20 seconds for one pass of 4,096 tokens."""
    long, order = torch.randn(1, 64, WIDTH), list[str]()

    async def honest() -> None:
        async with session(swarm, SESSIONS[1], 8, "honest", "c") as client:
            await client.send(encode(Step(**call(TOKEN, None, None), number=1)))
            await send_tensor(client, TOKEN)
            assert await receive_reply(client) == Output(number=1)
            await receive_tensor(client, TOKEN.shape)
        order.append("honest")

    async def attack() -> None:
        async with session(swarm, SESSIONS[0], 64, server="c") as client:
            await client.send(encode(kind(**call(long, None, None))))
            for _ in range(1 + (kind is Backward)):
                await send_tensor(client, long)
            while not isinstance(await receive_reply(client), Output):
                pass
        order.append("long")

    computing = Between(honest)
    try:
        swarm.known("honest")
        swarm.add("c", 0, 2, computing)
        swarm.run(attack())
    finally:
        computing.close()
    assert order == ["honest", "long"]


@pytest.mark.parametrize("kind", [Pass, Backward])
def test_a_call_whose_attention_would_take_too_much_memory_is_not_received(
    swarm: Swarm, kind: type[Pass | Backward], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = swarm.whole.config.num_attention_heads
    monkeypatch.setattr(chunks, "SCORES", heads * (63 if kind is Pass else 63 * 64))

    async def attack() -> Reply:
        async with session(swarm, SESSIONS[0], 64) as client:
            await client.send(encode(kind(rows=1, tokens=64)))
            return await receive_reply(client)

    refused = swarm.run(attack())
    assert isinstance(refused, Refused)
    assert refused.why == "length"
