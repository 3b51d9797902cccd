"""What a peer does whose computer has stood still."""

import asyncio
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedloc_kit.records import Begun
from dedloc_kit.swarm.pipeline import member as members
from dedloc_kit.swarm.pipeline.computing import StageComputer
from dedloc_kit.swarm.pipeline.member import STILL_SECONDS, PipelineMember
from dedloc_kit.swarm.remote.turns import Turns
from tests.swarm.pipeline.local_pipeline import LinearStage, Sums

BATCH, SECONDS = 24, 20.0


def test_who_has_stood_still_begins_anew_before_a_batch_is_full_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would bring what others have computed again meanwhile."""
    stage, now = LinearStage(1), [100.0]
    model = stage.build_model()
    held = StageComputer(stage, model, Sums(model), most=100)
    monkeypatch.setattr(members, "_clock", lambda: now[0])
    member, before = PipelineMember.__new__(PipelineMember), held.session
    member._held, member._driver, member._full, member._looked = held, None, (-1, math.inf), 0.0
    member._run, member.turns = cast(Any, SimpleNamespace(global_batch=BATCH)), Turns()
    told = {"d": Begun(step=0, samples=BATCH, final=True)}
    member._drivers = cast(Any, SimpleNamespace(told=lambda: dict(told)))

    async def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    async def live() -> None:
        counting = asyncio.create_task(member._count(held))
        await until(lambda: member.wanted() == BATCH)
        now[0] += STILL_SECONDS + 0.1
        assert member.wanted() == math.inf
        await until(lambda: member.turns.unfinished > 0)
        assert member.wanted() == math.inf
        member.turns.take(SECONDS)
        assert held.session != before
        await until(lambda: member.wanted() == BATCH)
        counting.cancel()

    asyncio.run(live())
