"""Who is computed for first."""

import asyncio
import threading
from functools import partial

import pytest

from dedloc_kit.swarm.serving.server.computing import Computing, Priority


def test_tokens_go_before_prompts_and_prompts_before_training() -> None:
    done: list[str] = []
    computing, free = Computing(), threading.Event()

    async def all_at_once() -> None:
        first = asyncio.create_task(computing.run(Priority.TRAINING, free.wait))
        given = [("training", Priority.TRAINING), ("prompt", Priority.PROMPT), ("token", Priority.TOKEN)]
        tasks = [
            asyncio.create_task(computing.run(priority, partial(done.append, f"{name}{number}")))
            for number, (name, priority) in enumerate([*given, *given])
        ]
        await asyncio.sleep(0)
        free.set()
        await asyncio.gather(first, *tasks)

    asyncio.run(all_at_once())
    computing.close()
    assert done == ["token2", "token5", "prompt1", "prompt4", "training0", "training3"]


def test_what_is_raised_is_the_callers_and_the_next_one_is_computed() -> None:
    computing = Computing()

    async def both() -> int:
        with pytest.raises(ZeroDivisionError):
            await computing.run(Priority.TOKEN, lambda: 1 // 0)
        return await computing.run(Priority.TOKEN, lambda: 5)

    assert asyncio.run(both()) == 5
    computing.close()


def test_what_nobody_waits_for_any_more_is_not_computed() -> None:
    computing, free = Computing(), threading.Event()
    called: list[int] = []

    async def given_up() -> None:
        first = asyncio.create_task(computing.run(Priority.TOKEN, free.wait))
        second = asyncio.create_task(computing.run(Priority.TOKEN, lambda: called.append(1)))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait({second})
        free.set()
        await first

    asyncio.run(given_up())
    computing.close()
    assert called == []
