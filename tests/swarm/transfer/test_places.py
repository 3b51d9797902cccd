"""Few places for many: in the order of coming, and who does nothing with its own loses it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from dedloc_kit.machine.dialling import in_own_loop
from dedloc_kit.swarm.transfer import places
from dedloc_kit.swarm.transfer.places import Place, Places


class Visitor:
    """A peer that asks for a place, and keeps what it gets."""

    def __init__(self, where: Places, name: str) -> None:
        self._where, self._name = where, name
        self.place: Place | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def asks(self, *, strict: bool = True) -> bool:
        asked = asyncio.Event()

        async def stay() -> None:
            with self._where.place_for(self._name, strict=strict) as self.place:
                asked.set()
                if self.place:
                    await asyncio.Event().wait()

        self.tasks.append(asyncio.create_task(stay()))
        await asked.wait()
        return self.place is not None

    async def leaves(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    @property
    def here(self) -> int:
        return sum(not task.done() for task in self.tasks)


@asynccontextmanager
async def visitors(names: str) -> AsyncIterator[list[Visitor]]:
    """Of two places."""
    where = Places(2, 3)
    everyone = [Visitor(where, name) for name in names]
    try:
        yield everyone
    finally:
        for visitor in everyone:
            if visitor.tasks:
                await visitor.leaves()


def test_a_place_that_is_left_goes_to_who_waits_longest() -> None:
    async def come() -> None:
        async with visitors("abcd") as (a, b, c, d):
            assert [await visitor.asks() for visitor in (a, b, c, d)] == [True, True, False, False]
            await a.leaves()
            assert not await d.asks(), "it is not its turn"
            assert await c.asks()
            await b.leaves()
            assert await d.asks()

    in_own_loop(come())


def test_who_waits_and_does_not_come_again_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "WAITING_SECONDS", 0.0)

    async def come() -> None:
        async with visitors("abcd") as (a, b, c, d):
            assert [await visitor.asks() for visitor in (a, b, c)] == [True, True, False]
            await a.leaves()
            assert await d.asks()

    in_own_loop(come())


@pytest.mark.parametrize("limit", ["STALL_SECONDS", "TURN_SECONDS"])
def test_who_is_overdue_makes_room_for_who_waits_and_for_nobody_else(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def come() -> None:
        async with visitors("abcd") as (a, b, c, d):
            assert [await visitor.asks() for visitor in (a, b, a, c)] == [True, True, True, False]
            monkeypatch.setattr(places, limit, -1.0)
            assert not await d.asks(strict=False), "while the line is taken nobody can do anything"
            assert (a.here, b.here) == (2, 1)
            assert await c.asks()
            assert await d.asks()
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*a.tasks, *b.tasks, return_exceptions=True), 10.0)
            assert (a.here, b.here) == (0, 0)

    in_own_loop(come())


def test_who_takes_something_is_not_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    async def come() -> None:
        async with visitors("abc") as (a, b, c):
            assert [await visitor.asks() for visitor in (a, b, c)] == [True, True, False]
            monkeypatch.setattr(places, "STALL_SECONDS", 0.2)
            await asyncio.sleep(0.3)
            assert a.place is not None
            a.place.touch()
            assert await c.asks()
            await asyncio.wait(b.tasks, timeout=10.0)
            assert (a.here, b.here) == (1, 0)

    in_own_loop(come())


def test_one_peer_has_one_place_for_so_many_tasks_and_a_newer_one_ends_the_oldest() -> None:
    async def come() -> None:
        async with visitors("abc") as (a, b, c):
            for _ in range(5):
                assert await a.asks()
            await asyncio.wait(a.tasks[:2], timeout=10.0)
            assert a.here == 3
            assert await b.asks()
            assert not await c.asks()

    in_own_loop(come())


def test_a_peer_that_goes_on_to_another_version_lets_go_of_the_one_before() -> None:
    async def come() -> None:
        async with visitors("a") as (a,):
            for _ in range(3):
                assert await a.asks()

            async def takes(version: str) -> None:
                with a._where.place_for("a", strict=True) as place:
                    assert place is not None
                    place.begin(version)

            for _ in range(2):
                await takes("1")
            await asyncio.sleep(0)
            assert a.here == 2, "one of three made room for the one that takes"
            await takes("2")
            await asyncio.wait(a.tasks, timeout=10.0)
            assert a.here == 0

    in_own_loop(come())
