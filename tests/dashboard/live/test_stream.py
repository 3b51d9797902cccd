import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.types import Message

from dedloc_kit.dashboard.live import stream
from dedloc_kit.dashboard.live.stream import BACKLOG, Viewers
from tests.hang import HANG


async def stays() -> Message:
    """The receiving side of a viewer that neither says anything nor leaves."""
    await asyncio.Event().wait()
    raise AssertionError("nothing sets this event")


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(HANG):
            await scenario()

    asyncio.run(bounded())


def test_a_viewer_that_takes_nothing_is_dropped_and_the_others_miss_nothing() -> None:
    async def scenario() -> None:
        viewers = Viewers(asyncio.Event())
        seen: list[bytes] = []

        async def takes(message: Message) -> None:
            seen.append(message["body"])

        async def blocks(message: Message) -> None:
            await asyncio.Event().wait()

        slow = asyncio.create_task(viewers.serve("192.0.2.1", stays, blocks))
        fast = asyncio.create_task(viewers.serve("192.0.2.1", stays, takes))
        await until(lambda: viewers.count == 2)
        viewers.welcome(b"hello")
        for number in range(BACKLOG + 2):
            viewers.push(b"%d" % number)
            await until(lambda: len(seen) == number + 2)  # noqa: B023 - awaited within the same turn
        await slow
        assert viewers.count == 1
        assert seen == [b"hello", *(b"%d" % number for number in range(BACKLOG + 2))]
        viewers.close()
        await fast

    run(scenario)


def test_a_viewer_whose_place_goes_to_another_one_ends_even_if_a_message_comes_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "MAX_VIEWERS", 1)

    async def scenario() -> None:
        viewers = Viewers(asyncio.Event())

        async def takes(message: Message) -> None:
            pass

        first = asyncio.create_task(viewers.serve("192.0.2.1", stays, takes))
        await until(lambda: viewers.count == 1)
        for _ in range(10):
            await asyncio.sleep(0)  # by now it waits for messages
        viewers.welcome(b"hello")
        second = asyncio.create_task(viewers.serve("192.0.2.2", stays, takes))
        await first
        assert viewers.count == 1
        viewers.close()
        await second

    run(scenario)


def test_a_newcomer_gets_the_whole_state_before_any_change() -> None:
    async def scenario() -> None:
        arrived = asyncio.Event()
        viewers = Viewers(arrived)
        seen: list[bytes] = []

        async def takes(message: Message) -> None:
            seen.append(message["body"])

        viewer = asyncio.create_task(viewers.serve("192.0.2.1", stays, takes))
        await arrived.wait()
        viewers.push(b"a change")
        viewers.welcome(b"everything")
        viewers.push(b"another change")
        await until(lambda: len(seen) == 2)
        assert seen == [b"everything", b"another change"]
        viewers.close()
        await viewer
        assert seen[-1] == b""
        assert not viewers.has_room("192.0.2.1")  # nobody is taken any more

    run(scenario)


def test_a_viewer_that_leaves_is_forgotten() -> None:
    async def scenario() -> None:
        viewers = Viewers(asyncio.Event())
        leaving = asyncio.Event()

        async def leaves() -> Message:
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def takes(message: Message) -> None:
            pass

        viewer = asyncio.create_task(viewers.serve("192.0.2.1", leaves, takes))
        await until(lambda: viewers.count == 1)
        leaving.set()
        await viewer
        assert viewers.count == 0

    run(scenario)
