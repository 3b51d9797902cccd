"""What a stage peer says, and when a batch is full for it: whose computer stood still, and where drivers are gone."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dedloc_kit.blocks.plans.stages import Move
from dedloc_kit.records.stages import Begun
from dedloc_kit.swarm.directory.profile import Profile
from dedloc_kit.swarm.pipeline import member as members
from dedloc_kit.swarm.pipeline.begun import Batches
from dedloc_kit.swarm.pipeline.computing import StageComputer
from dedloc_kit.swarm.pipeline.member import STILL_SECONDS, PipelineMember
from dedloc_kit.swarm.remote.turns import Turns
from tests.swarm.pipeline.local_pipeline import RUN_ID, LinearStage, Sums

BATCH, SECONDS = 24, 20.0


class Peer:
    """A member that holds a stage, as far as it counts what a batch has."""

    def __init__(self) -> None:
        stage = LinearStage(1)
        model = stage.model()
        self.held = held = StageComputer(stage, model, Sums(model), most=100)
        self.member = member = PipelineMember.__new__(PipelineMember)
        member._held, member._driver, member._full = held, None, members._Full(-1, math.inf, 0)
        member._looked = member._hears = 0.0
        member._run, member.turns = cast(Any, SimpleNamespace(global_batch=BATCH)), Turns()
        self.told = {"d": Begun(step=0, samples=BATCH, final=True)}
        member._batches = Batches(BATCH)
        member._drivers = cast(Any, SimpleNamespace(told=lambda: dict(self.told)))

    def run(self, living: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def live() -> None:
            counting = asyncio.create_task(self.member._count(self.held))
            await living()
            counting.cancel()

        asyncio.run(live())


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_who_has_stood_still_begins_anew_before_a_batch_is_full_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would bring what others have computed again meanwhile."""
    now, peer = [100.0], Peer()
    monkeypatch.setattr(members, "_clock", lambda: now[0])
    member, before, rests = peer.member, peer.held.session, list[float]()
    driver = {"rest": rests.append, "begun": peer.told["d"], "is_behind": lambda _: False, "missing": ""}
    member._driver = cast(Any, SimpleNamespace(**driver))
    member._signer = cast(Any, SimpleNamespace(peer="d"))

    async def living() -> None:
        await until(lambda: member.wanted() == BATCH)
        now[0] += STILL_SECONDS + 0.1
        assert member.wanted() == math.inf
        await until(lambda: member.turns.unfinished > 0)
        assert member.wanted() == math.inf
        member.turns.take(SECONDS)
        assert peer.held.session != before
        await until(lambda: member._hears > now[0])
        assert rests == [members.HEARD_SECONDS]
        await asyncio.sleep(3 * members.LOOK_SECONDS)
        assert member.wanted() == math.inf, "drivers are not heard again at once"
        for _ in range(2):
            now[0] += members.HEARD_SECONDS / 2
            await until(lambda: member._looked == now[0])
        assert member.wanted() == BATCH

    peer.run(living)


def test_who_stands_still_in_the_middle_of_a_look_notices_it_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> dict[str, Begun]:
        now[0] += stops.pop() if stops else 0.0
        return dict(peer.told)

    now, peer, stops = [100.0], Peer(), [STILL_SECONDS + 0.1]
    monkeypatch.setattr(members, "_clock", lambda: now[0])
    before, peer.member._drivers = peer.held.session, cast(Any, SimpleNamespace(told=told))

    async def living() -> None:
        await until(lambda: peer.member.turns.unfinished > 0)
        peer.member.turns.take(SECONDS)
        assert peer.held.session != before

    peer.run(living)


def test_what_a_driver_that_is_gone_has_sent_does_not_fill_the_batch() -> None:
    """Else a stage would take the step before all has come that living drivers have sent the other stages."""
    peer = Peer()
    peer.held._step, peer.held._samples = 0, Counter(d=20, e=4)

    async def living() -> None:
        await until(lambda: peer.member.wanted() == BATCH)
        assert peer.member.beside() == 4
        peer.told["e"] = Begun(step=0, samples=4, final=True)
        await until(lambda: peer.member.beside() == 0)

    peer.run(living)


def test_who_drives_says_where_its_microbatches_are_until_it_goes_to_another_stage() -> None:
    member, there = Peer().member, ((1, 0), (0, 2))
    member._run, member._pinned, member.upload = cast(Any, SimpleNamespace(run_id=RUN_ID)), False, None
    member._profile = Profile("", "a", "", "cpu", False, True, (), "", False)
    begun = Begun(step=0, samples=4, final=False)
    member._driver = cast(Any, SimpleNamespace(begun=begun, driven=0, accuses=(), in_flight_at=there))
    member.offers = cast(Any, SimpleNamespace(tell=lambda: None))
    member.move(Move(2, 1.0))
    member.go()
    assert member.offer().in_flight == there
    last = member._coming()
    assert last is not None
    assert (last.stage, last.begun, last.in_flight) == (2, None, ())
