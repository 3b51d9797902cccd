"""The world in memory fails as real ones do, and alike each time."""

import asyncio
import json

import pytest

from dedloc_kit.swarm.p2p import seams
from tests.swarm.harness import progress
from tests.swarm.p2p.in_memory import MemoryClock, MemoryNetwork, MemoryRecords, World, run


async def echo(peer: str, stream: seams.Stream) -> None:
    while True:
        await stream.send(await stream.receive(100))


def arrivals(seed: int) -> list[float]:
    """When answers come to two callers."""

    async def test() -> list[float]:
        world, clock = World(seed), MemoryClock()
        await MemoryNetwork(world, "bina").serve("echo", echo)

        async def ask(name: str) -> list[float]:
            async with MemoryNetwork(world, name).open("bina", "echo") as stream:
                await stream.send(b"a")
                await stream.send(b"b")
                return [clock.now() for _ in "ab" if await stream.receive(9)]

        return [each for some in await asyncio.gather(ask("asha"), ask("chand")) for each in some]

    return run(test())


def test_a_world_is_a_function_of_its_seed() -> None:
    assert arrivals(1) == arrivals(1)
    assert len({json.dumps(arrivals(seed)) for seed in range(5)}) == 5


def test_years_pass_at_once_and_waiting_for_ever_is_an_error() -> None:
    async def years() -> float:
        await MemoryClock().sleep(1e8)
        return MemoryClock().now()

    assert run(years()) == pytest.approx(1e8)

    async def ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer"):
        run(ever())


def test_what_is_sent_into_a_cut_vanishes_and_a_deadline_ends_the_wait() -> None:
    async def test() -> None:
        world, clock = World(1), MemoryClock()
        network = MemoryNetwork(world, "asha")
        await MemoryNetwork(world, "bina").serve("echo", echo)
        async with network.open("bina", "echo") as stream:
            await stream.send(b"a")
            assert await stream.receive(9) == b"a"
            world.cuts.add(("asha", "bina"))
            await stream.send(b"b")
            with pytest.raises(TimeoutError):
                async with clock.deadline(clock.now() + 60):
                    await stream.receive(9)
            with pytest.raises(ConnectionError):
                async with network.open("bina", "echo"):
                    pass

    run(test())


def test_a_server_that_closes_first_loses_what_is_on_the_way() -> None:
    async def test() -> None:
        world = World(1)

        async def hasty(peer: str, stream: seams.Stream) -> None:
            await stream.send(b"x")

        await MemoryNetwork(world, "bina").serve("hasty", hasty)
        async with MemoryNetwork(world, "asha").open("bina", "hasty") as stream:
            with pytest.raises((EOFError, OSError)):
                await stream.receive(1)

    run(test())


def test_a_directory_forgets_lags_and_holds_nonsense_beside_good_records() -> None:
    async def test() -> None:
        world, clock = World(1), MemoryClock()
        asha, mallory = (MemoryRecords(world, name, clock) for name in ("asha", "mallory"))
        for step in (1, 2):
            await asha.put("key", progress(step=step), clock.time() + 50 + step)
        await mallory.put_anything("key", {"step": "nonsense"}, clock.time() + 50)
        assert (await asha.get("key")).keys() == {"asha", "mallory"}
        world.stale, world.lost = 0.3, 0.3
        steps = {found["asha"].value["step"] if "asha" in (found := await asha.get("key")) else 0 for _ in range(50)}
        assert steps == {0, 1, 2}

    run(test())
