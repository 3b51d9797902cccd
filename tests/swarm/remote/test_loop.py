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


def test_what_goes_on_and_ends_by_a_fault_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def fault() -> None:
        raise RuntimeError("a fault")

    with Loop() as loop:
        loop.keep(asyncio.sleep(3600))
        kept = loop.keep(fault())
        assert isinstance(kept.exception(timeout=10), RuntimeError)
    assert [record.message for record in caplog.records] == ["a part of this peer has ended by a fault"]
