"""How far a member of an all-reduce is ahead of its reducers."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dedloc_kit.swarm.allreduce import window
from dedloc_kit.swarm.allreduce.window import AHEAD, SendWindow


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20.0))


async def waits(*tasks: "asyncio.Future[None]") -> bool:
    return not (await asyncio.wait(tasks, timeout=0.2))[0]


async def send(sender: SendWindow, reducer: int, size: int = 100) -> None:
    await sender.room(reducer)
    sender.sent(reducer, size)


def test_a_part_waits_until_one_that_came_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_WAIT", 60.0)

    async def test() -> None:
        sender = SendWindow([0, 100])
        for _ in range(AHEAD):
            await send(sender, 1)
        one_more = asyncio.create_task(send(sender, 1))
        assert await waits(one_more)
        sender.came(1)
        await one_more
        assert await waits(asyncio.create_task(send(sender, 1)))

    run(test())


def test_all_reducers_get_their_parts_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_WAIT", 60.0)

    async def test() -> None:
        sender = SendWindow([3, 0, 6])  # the third reduces twice as much as the first
        order = []

        async def send_all(reducer: int, parts: int) -> None:
            for _ in range(parts):
                await send(sender, reducer)
                order.append(reducer)

        await asyncio.gather(send_all(0, 3), send_all(2, 6))
        assert [order[:k].count(0) for k in (3, 6, 9)] == [1, 2, 3]

    run(test())


def test_a_slow_reducer_has_more_parts_under_way_than_a_quick_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_WAIT", 60.0)

    async def test() -> None:
        sender = SendWindow([100, 100])
        for _ in range(AHEAD - 1):
            await send(sender, 0)
            await send(sender, 1)
            sender.came(0)  # while the other says nothing
        await send(sender, 1)
        assert await waits(asyncio.create_task(send(sender, 0)))

    run(test())


def test_a_part_goes_after_a_second_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_WAIT", 0.05)

    async def test() -> None:
        sender = SendWindow([100, 100])
        for _ in range(AHEAD + 2):  # it has not begun with the other at all
            await send(sender, 0)

    run(test())


def test_the_rate_counts_only_the_time_in_which_a_part_is_on_its_way() -> None:
    async def test() -> None:
        sender = SendWindow([9, 0])
        await send(sender, 0, 500)
        assert sender.rate == 0.0
        await asyncio.sleep(0.3)
        sender.came(0)
        at_once = sender.rate
        assert 0.0 < at_once <= 500 / 0.3
        await asyncio.sleep(0.3)  # nothing is on its way
        assert sender.rate == at_once
        await send(sender, 0, 500)
        await asyncio.sleep(0.3)
        sender.came(0)
        assert 0.0 < sender.rate <= 1000 / 0.4

    run(test())


def test_nobody_waits_for_parts_that_went_to_a_reducer_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_WAIT", 60.0)

    async def test() -> None:
        sender = SendWindow([100, 100])
        for _ in range(AHEAD // 2):
            await send(sender, 0)
            await send(sender, 1)
        one_more = asyncio.create_task(send(sender, 1))
        assert await waits(one_more)
        sender.gone(0)
        sender.deal([0, 200])
        await one_more
        assert not sender.empty

    run(test())


def test_that_a_part_came_that_never_went_is_no_news() -> None:
    async def test() -> None:
        sender = SendWindow([9])
        sender.came(0)
        assert sender.rate == 0.0

    run(test())
