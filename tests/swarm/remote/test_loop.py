"""An event loop for a role whose other threads compute."""

import asyncio
from concurrent.futures import CancelledError

import pytest

from dedloc_kit.swarm.remote.loop import Loop


async def module_of_loop() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_its_loop_is_a_fast_one_and_those_of_the_process_stay_what_they_were() -> None:
    policy = asyncio.get_event_loop_policy()
    with Loop() as loop:
        assert loop.run(module_of_loop()) == "uvloop"
    assert asyncio.get_event_loop_policy() is policy


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    with Loop() as loop:
        waiting = loop.start(asyncio.sleep(3600))
    with pytest.raises(CancelledError):
        waiting.result(timeout=10)
