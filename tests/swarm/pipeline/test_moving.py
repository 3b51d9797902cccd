"""A stage peer goes to another stage when it is its turn, and never away from one that needs it."""

from collections.abc import Mapping
from typing import Any

import pytest

from dedloc_kit.blocks.plans.stages import BARE_LOOK, HORIZON, LINE, LOADING, REST, SECOND_LOOK, Stage
from dedloc_kit.records.stages import StageMove, StageOffer
from dedloc_kit.swarm.pipeline import moving
from dedloc_kit.swarm.pipeline.moving import Moving
from dedloc_kit.swarm.pipeline.placing import stage_peers
from tests.swarm.pipeline.local_pipeline import offer

THREE = [Stage(1 / 3, 1e6)] * 3
START = 10_000.0


class Swarm:
    """Peers `a`, `b`, ... of which each sees the others' records at once, and a clock for all."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: int | None) -> None:
        self.now = START
        self.records = {"abcdefgh"[k]: holds(stage) for k, stage in enumerate(held)}
        self.first_seen: dict[tuple[str, object], float] = {}
        self.absent = set[str]()  # as all see who are not
        self.speeds: dict[str, float] = {}  # newer than what is told
        self._moving = {name: self._plan_of(name) for name in self.records}
        for clock in ("get_dht_time", "monotonic"):
            monkeypatch.setattr(moving, clock, lambda: self.now)

    def _plan_of(self, name: str) -> Moving:
        return Moving(THREE, name, Seen(self, name), lambda: self.mine(name), absent=lambda: self.absent)

    def mine(self, name: str) -> StageOffer:
        speed = self.speeds.get(name, self.records[name].microbatches_per_second)
        return self.records[name].model_copy(update={"microbatches_per_second": speed})

    def change(self, name: str, **fields: Any) -> None:
        self.records[name] = self.records[name].model_copy(update=fields)

    def look(self, name: str) -> int | None:
        """Where it goes now, if it goes; what it announces is in its record then."""
        plan = self._moving[name]
        goes = plan.look()
        intends = plan.intends
        told = None if intends is None else StageMove(stage=intends.stage, announced=intends.announced)
        self.change(name, moving=told)
        return None if goes is None else goes.stage

    def run(self, seconds: float) -> dict[str, int]:
        """Who goes where within so many seconds, each as the others see it from then on."""
        gone: dict[str, int] = {}
        end = self.now + seconds
        while self.now < end:
            there = [name for name in self.records if name not in self.absent]
            for name in [name for name in there if self.records[name].state == "online"]:
                if (stage := self.look(name)) is not None:
                    gone[name] = stage
                    move = StageMove(stage=stage, announced=self.now, begun=True)
                    self.change(name, state="moving", moving=move, moved=self.now)
            self.now += 5.0
        return gone

    def plan(self, name: str) -> Moving:
        return self._moving[name]


class Seen:
    """What one of them sees of the others."""

    def __init__(self, swarm: Swarm, name: str) -> None:
        self._swarm, self._name = swarm, name

    @property
    def told(self) -> StageOffer:
        return self._swarm.records[self._name]

    def others(self) -> Mapping[str, StageOffer]:
        return {name: record for name, record in self._swarm.records.items() if name != self._name}

    def first_seen(self, peer: str, what: object) -> float:
        return self._swarm.first_seen.setdefault((peer, what), self._swarm.now)


def holds(stage: int | None, **fields: Any) -> StageOffer:
    return offer(stage, microbatches_per_second=1.0, moved=1.0, **fields)


def test_the_fastest_peer_goes_to_a_stage_that_nobody_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 0, 2)
    swarm.change("b", microbatches_per_second=4.0)
    assert swarm.run(BARE_LOOK) == {}, "whoever seems gone may be there"
    assert swarm.run(BARE_LOOK) == {"b": 1}


def test_a_stage_whose_peers_are_gone_is_taken_before_their_records_lapse(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 1, 1, 2)
    swarm.absent = {"c"}
    assert swarm.run(60.0) == {}, "one is there"
    assert swarm.plan("d").needed_here()
    swarm.absent = {"c", "d"}
    assert swarm.look("a") is None
    swarm.absent = set()
    swarm.now += BARE_LOOK
    assert swarm.look("a") is None, "they were there after all"
    swarm.absent = {"c", "d"}
    assert set(swarm.run(2 * BARE_LOOK + 5).values()) == {1}


@pytest.mark.parametrize(
    ("state", "upload", "moves"),
    [(HORIZON * LINE, None, {}), (HORIZON * LINE, 1e9, {"a": 1}), (1e6, 1e3, {"a": 1})],
    ids=["unknown", "fast", "slow up"],
)
def test_a_large_stage_is_downloaded_by_whose_line_is_known_to_be_fast(
    monkeypatch: pytest.MonkeyPatch, state: float, upload: float | None, moves: dict[str, int]
) -> None:
    monkeypatch.setattr("tests.swarm.pipeline.test_moving.THREE", [Stage(1 / 3, state)] * 3)
    swarm = Swarm(monkeypatch, 0, 0, 0, 1, 2, 2)
    swarm.change("a", upload=upload)
    assert swarm.run(60.0) == moves


def test_of_two_that_are_best_by_their_newest_speeds_one_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only one of them knows would have both go at once."""
    swarm = Swarm(monkeypatch, 0, 0, 0, 2)
    swarm.speeds = {"a": 1.1, "b": 1.2, "c": 1.3}
    for name in "abc":
        swarm.look(name)
    swarm.now += BARE_LOOK
    assert [name for name in "abc" if swarm.look(name) is not None] == ["a"]


def test_one_moves_at_a_time_to_the_stage_that_lacks_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 0, 0, 1, 2)
    gone = swarm.run(REST / 2)
    assert len(gone) == 1
    (first,) = gone
    stage = gone[first]
    swarm.change(first, state="online", stage=stage, moving=None)
    assert list(swarm.run(REST / 2).values()) == [3 - stage], "then another one to the other stage"


def test_the_last_peer_of_a_stage_never_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 1, 1)
    swarm.change("c", state="leaving")
    assert swarm.run(600.0) == {}
    swarm.change("c", state="joining", moved=swarm.now)
    assert swarm.run(60.0) == {}, "who still loads a stage does not hold it"
    assert swarm.plan("b").needed_here()
    swarm.change("c", state="online")
    assert not swarm.plan("b").needed_here()
    swarm.change("c", state="moving", moving=StageMove(stage=2, announced=swarm.now, begun=True))
    assert swarm.plan("b").needed_here(), "who has begun to move is as good as gone"


def test_whom_its_owner_has_placed_never_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 1)
    swarm.change("a", pinned=True)
    swarm.change("b", pinned=True)
    assert swarm.run(600.0) == {}
    swarm.change("b", pinned=False)
    assert swarm.run(60.0) == {"b": 2}


def test_who_has_moved_rests_unless_a_stage_has_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 0, 1, 2)
    for name in swarm.records:
        swarm.change(name, moved=swarm.now)
    swarm.records["c"] = holds(0, pinned=True)
    assert swarm.run(REST) == {}
    for name in ("a", "b"):
        swarm.change(name, moved=swarm.now)
    swarm.change("e", state="leaving")
    ((_, stage),) = swarm.run(60.0).items()
    assert stage == 2


def test_an_announcement_that_is_dated_back_counts_from_when_it_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 1)
    swarm.look("a")
    swarm.now += SECOND_LOOK - 1
    swarm.change("b", moving=StageMove(stage=2, announced=START - SECOND_LOOK + 1))
    swarm.look("a")
    swarm.now += 2
    assert swarm.look("a") == 2


def test_a_stage_to_which_somebody_goes_already_needs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 0, 1)
    assert swarm.plan("a").needed_at(2)
    swarm.change("b", state="moving", moving=StageMove(stage=2, announced=START, begun=True), moved=START)
    assert not swarm.plan("a").needed_at(2)
    assert swarm.run(60.0) == {}
    swarm.now = START + LOADING
    assert swarm.plan("a").needed_at(2), "for ever nobody is waited for"


def test_whoever_dies_on_the_way_to_a_stage_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = Swarm(monkeypatch, 0, 0, 0, 1)
    swarm.change("b", state="moving", moving=StageMove(stage=2, announced=START, begun=True), moved=START)
    assert swarm.run(30.0) == {}
    del swarm.records["b"]  # it has lapsed
    assert list(swarm.run(30.0).values()) == [2]


def test_of_a_stage_that_there_is_not_nobody_moves_or_comes() -> None:
    nowhere = StageMove(stage=9, announced=1.0, begun=True)
    lost = holds(1).model_copy(update={"state": "moving", "moving": nowhere})
    assert stage_peers({"a": lost, "b": holds(9)}, 3) == []
