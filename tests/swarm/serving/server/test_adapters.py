"""A client's adapter changes its own sessions alone, whoever dies, and a server keeps no more than it wants."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.adapters.adapters import Adapter, AdapterForm, AdapterTensor, _digest
from dedloc_kit.blocks.adapters.lora import TrainableAdapter
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.serving.protocol import Opened, Reply, Wanted, receive_reply
from dedloc_kit.swarm.serving.server import adapters
from dedloc_kit.swarm.serving.server.server import SpanService
from tests.blocks import tiny
from tests.blocks.test_ends import written
from tests.blocks.tuned import adapter_for, local
from tests.swarm.serving.local_swarm import At, Swarm, two_servers
from tests.swarm.serving.server.test_server import OPEN, refused, until

EVERY = 5
STEPS = 15


@pytest.fixture(scope="module")
def whole() -> Any:
    return tiny.model("Llama")


@pytest.fixture
def swarm(whole: Any) -> Iterator[Swarm]:
    with two_servers(whole) as swarm:
        yield swarm


def trained(
    swarm: Swarm, before: Callable[[int], None], between: Callable[[int], None]
) -> tuple[TrainableAdapter, set[str]]:
    """An adapter after some steps, and who has answered in the last one.

    :param before: called before the forward pass of each step
    :param between: called between forward and backward
    """
    torch.manual_seed(2)
    hidden, wanted = torch.randn(2, 2, 4, 32)  # one chunk: else rounding depends on who serves how many layers
    adapter = adapter_for(swarm.whole)
    optimizer = torch.optim.SGD(adapter.parameters(), lr=0.1)
    for number in range(1, STEPS + 1):
        remote = swarm.remote(adapter=adapter.adapter())
        before(number)
        output, inputs = swarm.run(remote.forward(hidden, None, None))
        between(number)
        output.requires_grad_()
        (output - wanted).square().mean().backward()
        assert output.grad is not None
        _, gradients = swarm.run(remote.backward(inputs, None, None, output.grad))
        for name, parameter in adapter.named.items():
            parameter.grad = gradients[name]
        optimizer.step()
        route = remote.route
        swarm.run(remote.close())
    return adapter, {hop.server for hop in route}


def nothing(number: int) -> None: ...


@pytest.mark.parametrize("when", ["before a pass", "between forward and backward", "within backward"])
def test_a_server_that_dies_at_every_fifth_step_changes_nothing(swarm: Swarm, when: str) -> None:
    undisturbed, _ = trained(swarm, nothing, nothing)
    names = iter("cdefgh")
    dying = list[At]()

    def kill(number: int) -> None:
        if number % EVERY:
            return
        first, second = next(names), next(names)
        swarm.add(first, 2, 3)
        swarm.add(second, 3, 4)
        for name in set(swarm.services) - {"a", first, second}:
            if when == "within backward":
                dying.append(At(1, partial(swarm.network.cut, name)))
                swarm.services[name]._computing = dying[-1]
            else:
                swarm.cut(name)

    found, last = trained(swarm, *((kill, nothing) if when == "before a pass" else (nothing, kill)))
    for one, other in zip(undisturbed.parameters(), found.parameters(), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-9)
    assert last == {"a", "g", "h"}
    for computing in dying:
        computing.close()


def test_a_server_dies_in_mid_answer_and_it_is_written_with_the_adapter_to_its_end(swarm: Swarm) -> None:
    adapter = adapter_for(swarm.whole)
    swarm.replace("b", "c")
    swarm.before_step = lambda number: swarm.cut("b") if number == 5 else None
    found = written(swarm.model(adapter=adapter.adapter()), num_beams=3)
    assert torch.equal(found, written(local(swarm.whole, adapter), num_beams=3))
    assert not torch.equal(found, written(swarm.whole, num_beams=3))
    assert swarm.sessions[0].recoveries == 1


def test_an_adapter_travels_once_and_is_used_for_nobody_else(swarm: Swarm) -> None:
    adapter = adapter_for(swarm.whole)
    plain, adapted = written(swarm.whole), written(local(swarm.whole, adapter))
    for _ in range(2):
        assert torch.equal(written(swarm.model(adapter=adapter.adapter())), adapted)
        assert torch.equal(written(swarm.model()), plain)
    part = adapter.adapter().part(0, 2)
    assert part is not None
    assert swarm.services["a"].adapters.size == part.form.size
    swarm.known("mallory")

    async def ask(peer: str) -> Reply:
        async with opened(swarm, part.digest, peer) as stream:
            return await receive_reply(stream)

    assert swarm.run(ask("me")) == Opened()
    assert swarm.run(ask("mallory")) == Wanted(), "what another has sent is not known to it"


PAIR = {"layers.0.self_attn.q_proj.lora_A": torch.randn(2, 32), "layers.0.self_attn.q_proj.lora_B": torch.randn(32, 2)}


def formed(**shapes: tuple[int, int]) -> AdapterForm:
    """Of LoRA for one layer; not checked."""
    tensors = {
        f"layers.0.self_attn.q_proj.lora_{kind}": AdapterTensor.model_construct(dtype="float32", shape=shape)
        for kind, shape in shapes.items()
    }
    return AdapterForm.model_construct(scaling=1.0, tensors=tensors)


def named(name: str) -> AdapterForm:
    return Adapter.of(
        {f"layers.{name}.lora_{kind}": PAIR[f"layers.0.self_attn.q_proj.lora_{kind}"] for kind in "AB"}
    ).form


NAN = formed(A=(2, 32), B=(32, 2)), torch.full((128,), float("nan")).numpy().tobytes()
WRONG: dict[str, tuple[str, AdapterForm, bytes]] = {
    "absurd rank": ("ab" * 32, formed(A=(513, 32), B=(32, 513)), b""),
    "absurd size": ("ab" * 32, formed(A=(2**31, 32), B=(32, 2**31)), b""),
    "a part without the other": ("ab" * 32, formed(A=(2, 32)), b""),
    "another shape than the layer's": ("ab" * 32, formed(A=(2, 16), B=(32, 2)), b""),
    "a layer of others": ("ab" * 32, named("2.self_attn.q_proj"), b""),
    "no such linear layer": ("ab" * 32, named("0.self_attn.x_proj"), b""),
    "numbers that are not finite": (_digest(*NAN), *NAN),
    "another hash": ("ab" * 32, Adapter.of(PAIR).form, Adapter.of(PAIR).pack()),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_adapter_that_cannot_be_is_refused_and_the_others_go_on(swarm: Swarm, case: str) -> None:
    digest, form, content = WRONG[case]

    async def send(stream: Stream) -> None:
        await stream.send(encode(form))
        if content:
            await stream.send(content)

    assert refused(swarm, send, OPEN.model_copy(update={"adapter": digest})) == "adapter"
    assert swarm.services["a"].adapters.size == 0


def test_a_form_of_absurd_size_is_not_taken(swarm: Swarm) -> None:
    async def send(stream: Stream) -> None:
        stream.writer.write((adapters.MAX_FORM_BYTES + 1).to_bytes(4, "big"))

    assert refused(swarm, send, OPEN.model_copy(update={"adapter": "ab" * 32})) == "adapter"


@asynccontextmanager
async def opened(swarm: Swarm, digest: str, peer: str = "mallory", number: int = 0) -> AsyncIterator[Stream]:
    opening = OPEN.model_copy(update={"session": f"{number:032x}", "adapter": digest})
    async with swarm.network.endpoint(peer).open("a", SpanService, encode(opening)) as stream:
        yield stream


async def given(stream: Stream, adapter: Adapter) -> Reply:
    """What a server says to it."""
    reply = await receive_reply(stream)
    if reply == Wanted():
        await stream.send(encode(adapter.form))
        await stream.send(adapter.pack())
        reply = await receive_reply(stream)
    return reply


def several(number: int) -> list[Adapter]:
    return [Adapter.of({name: tensor + n for name, tensor in PAIR.items()}) for n in range(number)]


def why(reply: Reply) -> str:
    return getattr(reply, "why", reply.kind)


@pytest.mark.parametrize(
    ("limit", "value"),
    [("ADAPTERS_OF_A_PEER", 2), ("BYTES_OF_A_PEER", 1100), ("ADAPTERS", 2), ("BYTES", 1100)],
)
def test_more_adapters_at_a_time_than_there_is_room_for_are_refused(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(adapters, limit, value)
    some = several(3)

    async def client() -> list[str]:
        async with opened(swarm, some[0].digest) as one, opened(swarm, some[1].digest, number=1) as two:
            said = [await given(one, some[0]), await given(two, some[1])]
            async with opened(swarm, some[2].digest, number=2) as three:
                said.append(await given(three, some[2]))
        return list(map(why, said))

    swarm.known("mallory")
    assert swarm.run(client()) == ["opened", "opened", "adapter"]


def test_unused_adapters_make_room_the_oldest_first(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "ADAPTERS_OF_A_PEER", 2)
    some, server = several(4), swarm.services["a"]

    async def client() -> list[str]:
        said = []
        for number in (0, 1, 2, 1, 3):
            async with opened(swarm, some[number].digest) as stream:
                said.append(why(await receive_reply(stream)))
                if said[-1] == "wanted":
                    await stream.send(encode(some[number].form))
                    await stream.send(some[number].pack())
                    assert await receive_reply(stream) == Opened()
            await until(lambda: not server.sessions)
        return said

    swarm.known("mallory")
    assert swarm.run(client()) == ["wanted", "wanted", "wanted", "opened", "wanted"]


def test_room_is_taken_before_an_adapter_arrives_and_given_back_if_it_does_not(swarm: Swarm) -> None:
    (adapter,), server = several(1), swarm.services["a"]

    async def client() -> None:
        async with opened(swarm, adapter.digest) as stream:
            assert await receive_reply(stream) == Wanted()
            await stream.send(encode(adapter.form))
            await stream.send(adapter.pack()[:100])
            await until(lambda: server.adapters.size == adapter.form.size)
        await until(lambda: not server.adapters.size)

    swarm.known("mallory")
    swarm.run(client())


def test_an_unused_adapter_is_forgotten_after_a_while(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "UNUSED_SECONDS", 0.01)
    (adapter,), server = several(1), swarm.services["a"]

    async def client() -> None:
        async with opened(swarm, adapter.digest) as stream:
            assert await given(stream, adapter) == Opened()
            async with opened(swarm, adapter.digest, number=1) as another:
                assert await given(another, adapter) == Opened()
            await until(lambda: len(server.sessions) == 1)
            await asyncio.sleep(0.05)
            assert server.adapters.size, "it is used"
        await until(lambda: not server.adapters.size)

    swarm.known("mallory")
    swarm.run(client())
