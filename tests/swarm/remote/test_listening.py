"""Whoever says nothing for too long is taken for gone, but not for what oneself has not heard."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedloc_kit.swarm.remote.listening import LATE_SECONDS, Listening

PATIENCE = 0.4


def listening() -> Listening:
    stream: Any = SimpleNamespace(heard=0.0, silence=0.0)
    return Listening(cast(Any, stream), PATIENCE, PATIENCE)


def test_a_silent_one_is_taken_for_gone() -> None:
    with pytest.raises(TimeoutError, match="has said nothing"):
        asyncio.run(listening().heard(asyncio.sleep(60)))


def test_time_in_which_this_process_stands_still_does_not_count() -> None:
    async def hear() -> str:
        work = listening().heard(asyncio.sleep(0.2 + PATIENCE + LATE_SECONDS, "here"))
        asyncio.get_running_loop().call_later(0.05, time.sleep, PATIENCE + LATE_SECONDS)
        return await work

    assert asyncio.run(hear()) == "here"
