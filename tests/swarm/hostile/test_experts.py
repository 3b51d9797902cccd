"""Hostile trainers: others are answered rightly by hosts of experts, and what they did is counted by its kind."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import torch
from torch import Tensor

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.swarm.experts import service
from dedloc_kit.swarm.experts.protocol import Answer, Backward, Forward, receive_reply
from dedloc_kit.swarm.experts.service import ExpertService
from dedloc_kit.swarm.network.bounds import ByteBudget, TooMuch
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.remote import judging
from dedloc_kit.swarm.remote.judging import Refused
from dedloc_kit.swarm.remote.tensors import TensorHead, packed, receive_tensor, send_tensor
from tests.experts.mixed_run import WIDTH
from tests.swarm.experts.local_hosts import CELLS, LAYER, NAMES, RUN, Swarm, honest, learn, sums, swarm

COUNTS = (3, 4)
CALL = Forward(layer=LAYER, cells=(0, 2), tokens=COUNTS, keep=True, step=1, samples=2)
"""Of two experts that `a` has."""
GIVEN = torch.randn(sum(COUNTS), WIDTH, generator=torch.Generator().manual_seed(0))
HELD = {name.cell for name in NAMES[::2] if name.layer == LAYER}
Act = Callable[[Stream], Awaitable[object]]


@pytest.fixture
def two() -> Iterator[Swarm]:
    with swarm() as made:
        yield made


def changed(**fields: Any) -> Forward:
    return CALL.model_copy(update=fields)


def with_one(number: float) -> Tensor:
    given = GIVEN.clone()
    given[1, 2] = number
    return given


async def ask(stream: Stream, call: Forward | Backward, given: Tensor) -> Answer | Refused:
    await stream.send(encode(call))
    await send_tensor(stream, given)
    reply = await receive_reply(stream)
    if isinstance(reply, Answer) and reply.answered:
        await receive_tensor(stream, (sum(call.tokens[at] for at in reply.answered), WIDTH))
    return reply


def forward(call: Forward, given: Tensor = GIVEN) -> Act:
    return lambda stream: ask(stream, call, given)


def backward(given: Tensor, call: Forward = CALL, **fields: Any) -> Act:
    """After a forward call that is right."""

    async def act(stream: Stream) -> Answer | Refused:
        reply = await ask(stream, call, GIVEN)
        assert isinstance(reply, Answer)
        return await ask(stream, Backward(tickets=reply.tickets, tokens=COUNTS, **fields), given)

    return act


async def long(stream: Stream) -> Answer | Refused:
    stream.writer.write((2**31).to_bytes(4, "big"))
    return await receive_reply(stream)


async def long_tensor(stream: Stream) -> Answer | Refused:
    await stream.send(encode(CALL))
    await stream.send(encode(TensorHead(dtype="float32", shape=(sum(COUNTS), WIDTH))))
    return await long(stream)


async def integers(stream: Stream) -> Answer | Refused:
    await stream.send(encode(CALL))
    await stream.send(encode(TensorHead.model_construct(dtype="int64", shape=(sum(COUNTS), WIDTH))))
    return await receive_reply(stream)


async def endless(stream: Stream) -> Answer | Refused:
    """More behind a call than belongs to it."""
    assert isinstance(await ask(stream, CALL, GIVEN), Answer)
    await stream.send(bytes(packed(GIVEN).content))
    return await receive_reply(stream)


async def say(stream: Stream, record: Any) -> Answer | Refused:
    await stream.send(encode(record))
    return await receive_reply(stream)


REFUSED: dict[str, tuple[str, Act]] = {
    "another width": ("shape", forward(CALL, torch.zeros(sum(COUNTS), WIDTH + 1))),
    "fewer tokens than it names": ("shape", forward(CALL, GIVEN[:4])),
    "a gradient of another width": ("shape", backward(GIVEN[:, :-1])),
    "another type": ("nonsense", integers),
    "NaN": ("values", forward(CALL, with_one(float("nan")))),
    "infinity": ("values", forward(CALL, with_one(float("inf")))),
    "a gradient with NaN": ("values", backward(with_one(float("nan")))),
    "a gradient with infinity": ("values", backward(with_one(float("-inf")))),
    "a gradient that becomes infinite": ("values", backward(GIVEN, exponent=900)),
    "a layer without experts": ("unknown", forward(changed(layer=1))),
    "more tokens than there is room for": ("full", lambda stream: say(stream, changed(tokens=(2**24, 2**24)))),
    "more tensors than one": ("nonsense", endless),
    "an expert twice": ("nonsense", lambda stream: say(stream, changed(cells=(2, 2)))),
    "an expert without its tokens": ("nonsense", lambda stream: say(stream, changed(tokens=(3,)))),
    "2 GB": ("nonsense", long),
    "a tensor of 2 GB": ("nonsense", long_tensor),
    "no call": ("nonsense", lambda stream: say(stream, Answer())),
}
LEFT_OUT: dict[str, tuple[str, Act]] = {
    "an expert that is elsewhere": ("unknown", forward(changed(cells=(1, 3)))),
    "an expert that there is not": ("unknown", forward(changed(cells=(6, 4095)))),
    "more samples than a batch": ("batch", forward(changed(samples=RUN.global_batch + 1))),
    "a step that is long over": ("stale", backward(GIVEN, changed(step=1))),
    "a step far ahead": ("ahead", backward(GIVEN, changed(step=40))),
    "tokens that become infinite": ("failed", forward(CALL, GIVEN * 1e38)),
}


async def told(two: Swarm, act: Act, peer: str = "a", name: str = "m") -> Any:
    async with two.network.endpoint(name).open(peer, ExpertService) as stream:
        return await act(stream)


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_is_wrong_is_refused_and_counted_and_not_added(two: Swarm, case: str) -> None:
    kind, act = REFUSED[case]
    two.endpoint("m")
    reply = two.run(told(two, act))
    assert isinstance(reply, Refused)
    assert reply.why == kind
    assert two.hosts["a"].refused == {kind: 1}
    honest(two)


@pytest.mark.parametrize("case", LEFT_OUT)
def test_what_an_expert_refuses_is_counted_and_not_added(two: Swarm, case: str) -> None:
    kind, act = LEFT_OUT[case]
    step = 7 if "step" in case else 1
    for host in two.hosts.values():
        for each in range(1, step):
            host.bank.take(each, 1, 0.0)
    two.endpoint("m")
    reply = two.run(told(two, act))
    assert isinstance(reply, Answer)
    assert reply.answered == ()
    assert two.hosts["a"].refused == {kind: 1}
    honest(two, step)


@pytest.mark.parametrize("what", ["forward", "backward"])
def test_what_is_far_larger_than_usual_is_not_added(two: Swarm, what: str) -> None:
    trainer = two.trainer("v")
    for seed in range(9):
        learn(trainer, seed, 2)
    before = sums(two.hosts["a"].bank)
    two.endpoint("m")
    act = forward(CALL, GIVEN * 1000) if what == "forward" else backward(GIVEN * 10)  # honest ones are of 0.01
    reply = two.run(told(two, act))
    assert isinstance(reply, Refused) or reply.answered == ()
    assert two.hosts["a"].refused == {"absurd": 1}
    after = sums(two.hosts["a"].bank)
    assert all(torch.equal(before[key], after[key]) for key in before)
    answered, _ = learn(trainer, 9, 2)
    assert answered.keys() == set(CELLS)


def test_a_ticket_is_good_for_one_call_of_the_one_who_got_it(two: Swarm) -> None:
    for name in ("m", "n"):
        two.endpoint(name)

    async def again() -> list[Answer | Refused]:
        open_to = [two.network.endpoint(name).open("a", ExpertService) for name in ("m", "n")]
        async with open_to[0] as mine, open_to[1] as others:
            first = await ask(mine, CALL, GIVEN)
            assert isinstance(first, Answer)
            call = Backward(tickets=first.tickets, tokens=COUNTS)
            return [await ask(stream, call, GIVEN) for stream in (others, mine, mine)]

    replies = two.run(again())
    assert [reply.answered for reply in replies if isinstance(reply, Answer)] == [(), (0, 1), ()]
    assert two.hosts["a"].refused == {"forgotten": 2}


def test_nobody_claims_more_samples_than_there_can_be_in_a_batch(two: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    assert two.hosts["a"].service._claims._most == MAX_BATCHES * RUN.global_batch
    two.hosts["a"].service._claims._most = 40
    two.endpoint("m")
    calls = [changed(samples=16), changed(samples=16), changed(samples=16), changed(samples=16, layer=0)]
    replies = [two.run(told(two, forward(call))) for call in calls]
    assert [getattr(reply, "why", "") for reply in replies] == ["", "", "batch", ""]
    for host in two.hosts.values():
        host.bank.take(1, 1, 0.0)
    assert isinstance(two.run(told(two, forward(changed(step=2, samples=16)))), Answer)


def test_who_sends_nonsense_again_is_refused_for_a_while_and_nobody_else(
    two: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.endpoint("m")
    nonsense = forward(CALL, with_one(float("nan")))
    replies = [two.run(told(two, act)) for act in (nonsense, nonsense, forward(CALL))]
    assert [reply.why for reply in replies] == ["values", "values", "barred"]
    honest(two)
    monkeypatch.setattr(judging, "BARRED", 0.0)
    assert isinstance(two.run(told(two, forward(CALL))), Answer)


@pytest.mark.parametrize("begun", ["head", "tensor"])
def test_a_call_without_its_end_is_given_up(two: Swarm, monkeypatch: pytest.MonkeyPatch, begun: str) -> None:
    monkeypatch.setattr(service, "SILENT_SECONDS", 0.3)
    two.endpoint("m")

    async def stall(stream: Stream) -> None:
        await stream.send(encode(CALL))
        if begun == "tensor":
            await stream.send(encode(packed(GIVEN).head))
            await stream.send(bytes(8))
        with pytest.raises((OSError, EOFError)):
            await receive_reply(stream)

    two.run(told(two, stall))
    assert two.hosts["a"].refused == {"silent": 1}
    monkeypatch.undo()
    honest(two)


def test_a_call_that_comes_drop_by_drop_is_given_up(two: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ARRIVING_SECONDS", 0.5)
    two.endpoint("m")

    async def drip(stream: Stream) -> None:
        await stream.send(encode(CALL))
        await stream.send(encode(packed(GIVEN).head))
        while True:
            await stream.send(bytes(1))
            await asyncio.sleep(0.05)

    with pytest.raises((OSError, EOFError)):
        two.run(told(two, drip))
    assert two.hosts["a"].refused == {"silent": 1}


def test_a_call_that_breaks_off_leaves_nothing(two: Swarm) -> None:
    two.endpoint("m")
    host = two.hosts["a"].service

    async def cut(stream: Stream) -> None:
        await stream.send(encode(CALL))
        while not host._room._taken:
            await asyncio.sleep(0.01)

    two.run(told(two, cut))
    two.until(lambda: not host._room._taken and not host._calls._held)
    honest(two)


def test_many_streams_of_one_peer_leave_room_for_others(two: Swarm) -> None:
    two.endpoint("m")
    host = two.hosts["a"]

    async def flood(stack: AsyncExitStack) -> None:
        for _ in range(200):
            await stack.enter_async_context(two.network.endpoint("m").open("a", ExpertService))
        while host.refused.get("full", 0) < 200 - 16:
            await asyncio.sleep(0.01)

    stack = AsyncExitStack()
    two.run(flood(stack))
    try:
        honest(two)
    finally:
        two.run(stack.aclose())


def test_what_one_trainer_has_computed_at_once_is_bounded(two: Swarm) -> None:
    two.endpoint("m")
    host, free = two.hosts["a"], threading.Event()
    output = host.bank.output

    def waiting(name: ExpertName, inputs: Tensor) -> Tensor:
        free.wait(30)
        return output(name, inputs)

    host.bank.output = waiting  # type: ignore[method-assign]

    async def many() -> list[Any]:
        tasks = [asyncio.create_task(told(two, forward(CALL))) for _ in range(12)]
        while host.refused.get("full", 0) < 12 - 8:
            await asyncio.sleep(0.01)
        free.set()
        return await asyncio.gather(*tasks)

    assert sorted(getattr(reply, "why", "") for reply in two.run(many())) == [""] * 8 + ["full"] * 4


def test_calls_without_end_of_one_peer_keep_nobody_from_being_answered(two: Swarm) -> None:
    two.endpoint("m")
    trainer = two.trainer("t")

    async def flood() -> None:
        while True:
            with suppress(OSError, EOFError):
                await told(two, forward(CALL))

    async def begin() -> list[asyncio.Task[None]]:
        return [asyncio.create_task(flood()) for _ in range(8)]

    async def end() -> None:
        for task in flooding:
            task.cancel()

    flooding = two.run(begin())
    try:
        for seed in range(5):
            assert [set(each) for each in learn(trainer, seed, 2)] == [set(CELLS)] * 2
    finally:
        two.run(end())
    assert not two.failed


def test_what_comes_takes_no_more_memory_than_the_host_gives() -> None:
    room = ByteBudget(100)
    with room.place("m", 30), room.place("m", 20):
        with pytest.raises(TooMuch), room.place("m", 1):
            pass
        with room.place("t", 25), pytest.raises(TooMuch), room.place("u", 13):
            pass
    assert not room._taken
    with room.place("m", 50):
        pass
