"""A server does what its clients ask, each only in its own sessions, and refuses what cannot be right."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.span import Span
from dedloc_kit.records.record import Record
from dedloc_kit.swarm.network import service
from dedloc_kit.swarm.network.service import Stream, encode
from dedloc_kit.swarm.remote.tensors import receive_tensor, send_tensor
from dedloc_kit.swarm.serving.protocol import (
    Done,
    Neighbours,
    Open,
    Opened,
    Output,
    Pass,
    PushOpen,
    Refused,
    Reply,
    Step,
    Wanted,
    call,
    receive_reply,
)
from dedloc_kit.swarm.serving.server import sessions
from dedloc_kit.swarm.serving.server.server import PushService, SpanService
from dedloc_kit.swarm.serving.server.sessions import Held
from tests.blocks import tiny
from tests.blocks.test_ends import written
from tests.swarm.serving.local_swarm import VERSION, Swarm, two_servers

SESSION = "5" * 32
OPEN = Open(
    session=SESSION, version=VERSION, begin=0, end=2, length=16, rows=2, form="float32", neighbours=Neighbours()
)
HIDDEN = torch.randn(2, 3, 32)
STEP = Step(**call(HIDDEN, None, None), number=1)
Act = Callable[[Stream], Awaitable[None]]


@pytest.fixture(scope="module")
def whole() -> Any:
    return tiny.model("Llama")


@pytest.fixture
def swarm(whole: Any) -> Iterator[Swarm]:
    with two_servers(whole) as swarm:
        yield swarm


async def said(stream: Stream, *records: Record | torch.Tensor) -> None:
    for record in records:
        await (stream.send(encode(record)) if isinstance(record, Record) else send_tensor(stream, record))


def refused(swarm: Swarm, act: Act, opening: Open = OPEN) -> str:
    """Why what this stranger does is refused, while another's answer is the right one."""

    async def stranger() -> str:
        async with swarm.network.endpoint("mallory").open("a", SpanService, encode(opening)) as stream:
            reply: Reply = await receive_reply(stream)
            if isinstance(reply, Opened | Wanted):
                await act(stream)
            while not isinstance(reply, Refused):
                reply = await receive_reply(stream)
                if isinstance(reply, Output):
                    await receive_tensor(stream, HIDDEN.shape)
            return reply.why

    swarm.known("mallory")
    swarm.before_step = lambda number: kinds.append(swarm.run(stranger())) if number == 3 else None
    kinds: list[str] = []
    answers = [written(model, max_new_tokens=4) for model in (swarm.model(), swarm.whole)]
    assert torch.equal(*answers)
    assert swarm.sessions[-1].recoveries == 0
    assert swarm.services["a"].rejections.drain() == {kinds[0]: 1}
    return kinds[0]


def changed(**fields: Any) -> Step:
    return STEP.model_copy(update=fields)


def positions(*values: int) -> bytes:
    return torch.tensor(values, dtype=torch.int32).repeat(2, 1).numpy().tobytes()


INFINITE = HIDDEN.clone()
INFINITE[1, 2, 3] = float("inf")
WRONG: dict[str, tuple[str, list[Record | torch.Tensor]]] = {
    "other shape than announced": ("shape", [STEP, HIDDEN[:, :2]]),
    "other size of hidden states": ("shape", [STEP, torch.zeros(2, 3, 16)]),
    "NaN": ("values", [STEP, HIDDEN * float("nan")]),
    "infinity": ("values", [STEP, INFINITE]),
    "positions beyond the length": ("positions", [changed(positions=positions(0, 1, 16))]),
    "negative positions": ("positions", [changed(positions=positions(-1, 0, 1))]),
    "too few positions": ("shape", [changed(positions=positions(0, 1))]),
    "a mask of another size": ("shape", [changed(mask=b"12")]),
    "a longer prompt than agreed": ("length", [changed(tokens=17)]),
    "a past that is not there": ("past", [STEP, HIDDEN, changed(number=2, past=4)]),
    "rows of the past that are not there": (
        "past",
        [STEP, HIDDEN, changed(number=2, past=3, past_rows=b"\0\0\2\0"), HIDDEN],
    ),
    "more rows than follow from the past": ("shape", [STEP, HIDDEN, changed(number=2, past=3, rows=3)]),
    "an earlier number": ("order", [changed(number=5), HIDDEN, changed(number=4, past=3)]),
    "a number again with something else": ("order", [STEP, HIDDEN, changed(past=3)]),
    "more rows than the caches hold": (
        "full",
        [STEP, HIDDEN, changed(number=2, past=3, past_rows=b"\0\0" * 999, rows=999)],
    ),
    "no such message": ("nonsense", [Opened()]),
    "a pass with a past": ("past", [Pass(rows=1, tokens=1, past=1)]),
    "a pass with more rows than agreed": ("shape", [Pass(rows=3, tokens=1)]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused_and_counted_and_the_others_go_on(swarm: Swarm, case: str) -> None:
    kind, records = WRONG[case]
    assert refused(swarm, lambda stream: said(stream, *records)) == kind


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("version", {"version": "cd" * 32}),
        ("span", {"begin": 1, "end": 3}),
        ("span", {"begin": 1, "end": 1}),
        ("full", {"length": 4096}),
    ],
)
def test_what_is_not_served_is_refused(swarm: Swarm, kind: str, fields: dict[str, Any]) -> None:
    assert refused(swarm, lambda stream: said(stream), OPEN.model_copy(update=fields)) == kind


def test_a_message_of_absurd_size_is_not_taken(swarm: Swarm) -> None:
    async def send(stream: Stream) -> None:
        stream.writer.write((2**31).to_bytes(4, "big"))

    assert refused(swarm, send) == "nonsense"


def test_a_step_that_comes_twice_is_computed_once(swarm: Swarm) -> None:
    again = Step(**call(HIDDEN[:, :1], None, None, past=3), number=2, past_rows=b"\1\0\0\0")

    async def client() -> list[torch.Tensor]:
        outputs = []
        async with swarm.network.endpoint("mallory").open("a", SpanService, encode(OPEN)) as stream:
            assert await receive_reply(stream) == Opened()
            for step, hidden in ((STEP, HIDDEN), (again, HIDDEN[:, :1]), (again, HIDDEN[:, :1])):
                await said(stream, step, hidden)
                assert await receive_reply(stream) == Output(number=step.number)
                outputs.append(await receive_tensor(stream, hidden.shape))
                assert await receive_reply(stream) == Done(number=step.number)
        return outputs

    swarm.known("mallory")
    _, once, twice = swarm.run(client())
    assert torch.equal(once, twice)
    assert not torch.equal(once[0], once[1])


def test_sessions_that_are_opened_and_left_take_no_more_than_one_peers_part(swarm: Swarm) -> None:
    server = swarm.services["a"]
    limit = sessions.SESSIONS_OF_A_PEER

    async def flood(stop: asyncio.Event) -> None:
        async def one(number: int) -> None:
            opening = OPEN.model_copy(update={"session": f"{number:032x}"})
            async with swarm.network.endpoint("mallory").open("a", SpanService, encode(opening)) as stream:
                await receive_reply(stream)
                await stop.wait()

        await asyncio.gather(*(one(number) for number in range(100)))

    async def begun() -> asyncio.Future[None]:
        future = asyncio.ensure_future(flood(stop))
        counted = 0
        while (counted := counted + server.rejections.drain()["full"]) < 100 - limit:
            await asyncio.sleep(0.01)
        return future

    swarm.known("mallory")
    stop = asyncio.Event()
    flooding = swarm.run(begun())
    assert len(server.sessions) == limit
    assert torch.equal(written(swarm.model()), written(swarm.whole))

    async def ended() -> None:
        stop.set()
        await flooding

    swarm.run(ended())
    swarm.run(swarm.sessions[-1].close())
    swarm.run(until(lambda: not server.sessions))
    assert server.budget.free == server.budget.tokens


def test_a_session_that_does_not_begin_is_over_soon(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedloc_kit.swarm.serving.server.server.UNUSED_SECONDS", 0.2)
    server = swarm.services["a"]

    async def leave() -> None:
        async with swarm.network.endpoint("mallory").open("a", SpanService, encode(OPEN)) as stream:
            await receive_reply(stream)
            await until(lambda: not server.sessions)

    swarm.known("mallory")
    swarm.run(leave())
    assert server.rejections.drain() == {"silent": 1}
    assert server.budget.free == server.budget.tokens


def test_a_reader_that_stalls_loses_its_session(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "SEND_SECONDS", 0.5)
    server = swarm.services["a"]
    hidden = torch.randn(100, 16, 32)
    opening = OPEN.model_copy(update={"rows": 100})

    async def ask(stream: Stream) -> None:
        for _ in range(20):
            await said(stream, Pass(**call(hidden, None, None)), hidden)

    async def stall() -> None:
        async with swarm.network.endpoint("mallory").open("a", SpanService, encode(opening)) as stream:
            await receive_reply(stream)
            asking = asyncio.create_task(ask(stream))
            await until(lambda: not server.sessions)
            asking.cancel()

    swarm.known("mallory")
    swarm.run(stall())
    assert server.rejections.drain() == {"silent": 1}


def test_nobody_pushes_into_the_session_of_another(swarm: Swarm) -> None:
    server = swarm.services["b"]

    async def push() -> None:
        place = next(iter(server.sessions))
        for client, session in (place, (place[0], SESSION), ("mallory", place[1])):
            opening = encode(PushOpen(client=client, session=session))
            async with swarm.network.endpoint("mallory").open("b", PushService, opening) as stream:
                reply = await receive_reply(stream)
                assert isinstance(reply, Refused)

    swarm.known("mallory")
    swarm.before_step = lambda number: swarm.run(push()) if number == 3 else None
    assert torch.equal(written(swarm.model()), written(swarm.whole))
    assert server.rejections.drain() == {"push": 3}


def test_a_server_is_told_no_past_by_another(swarm: Swarm) -> None:
    opening = OPEN.model_copy(update={"neighbours": Neighbours(previous="b")})

    async def push() -> None:
        async with swarm.network.endpoint("mallory").open("a", SpanService, encode(opening)) as client:
            assert await receive_reply(client) == Opened()
            first = encode(PushOpen(client="mallory", session=SESSION))
            async with swarm.network.endpoint("b").open("a", PushService, first) as stream:
                assert await receive_reply(stream) == Opened()
                await said(stream, changed(number=0), HIDDEN)
                assert await receive_reply(client) == Refused(why="push", text="a past is the client's to tell")

    swarm.known("mallory")
    swarm.run(push())


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


def test_a_server_answers_each_session_with_the_version_that_it_began_with(whole: Any, swarm: Swarm) -> None:
    newer = copy.deepcopy(whole)
    for values in newer.parameters():
        values.mul_(1.1)
    old = swarm.remote("old")
    swarm.run(old.step(HIDDEN, None, None, Past(0)))
    for spans in swarm.services.values():
        (before,) = spans.held
        spans.hold(Held(Span.of(newer, before.begin, before.end), "cd" * 32), before)
    new, again = swarm.remote("new"), swarm.remote("again")
    new.config = replace(new.config, version="cd" * 32)
    first = [swarm.run(session.step(HIDDEN, None, None, Past(0))) for session in (new, again)]
    after = [swarm.run(session.step(HIDDEN[:, :1], None, None, Past(3))) for session in (old, new, again)]
    assert torch.equal(after[0], after[2])
    assert not torch.allclose(after[0], after[1])
    places = torch.arange(3)[None].expand(2, 3)
    for output, model in zip(first, (newer, whole), strict=True):
        assert torch.allclose(output, Span.of(model, 0, 4).forward(HIDDEN, None, places), atol=1e-4)
    for spans in swarm.services.values():
        newest, before = spans.held
        assert spans.answers(newest)
        assert spans.answers(before)
        spans.dismiss(before)
        assert [session.dismissed for session in spans.sessions.values()] == [True, False, True]
