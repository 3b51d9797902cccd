"""What the coordinator of a run in stages makes of what each stage tells."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dedloc_kit.coordinator import pipeline_coordinator
from dedloc_kit.coordinator.pipeline_coordinator import KEPT_STEPS, StagedBelief, StagedOptimizer, StagedPeer, Steps
from dedloc_kit.known_peers import Memory, Taken, recall
from dedloc_kit.learning.train.state.state import START, Position
from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.steps import Contribution, GlobalStep
from tests.swarm.harness import belief, progress


def gave(samples: int, total: int = 0) -> Contribution:
    return Contribution(
        run_id="r",
        step=1,
        session="ab",
        samples=samples,
        session_samples=total or samples,
        loss=2.0,
        name="x",
        time=1.0,
    )


def taken(step: int, time: float = 1.0) -> GlobalStep:
    return GlobalStep(step=step, round="ab", time=time, samples=100, loss=2.0, peers=2, seconds=time)


def test_the_run_has_taken_a_step_when_its_last_stage_has_and_samples_count_by_the_share_of_the_stage() -> None:
    told = list[tuple[GlobalStep, dict[str, Contribution]]]()
    steps = Steps(2, lambda *step: told.append(step))
    first, last = steps.of_stage(0, 0.25), steps.of_stage(1, 0.75)
    first(taken(1, 5.0), {"asha": gave(60, 600), "bina": gave(40), "organizer": gave(0)})
    first(taken(2), {"asha": gave(100)})
    assert not told
    last(taken(1), {"chitra": gave(80), "bina": gave(20), "organizer": gave(0)})
    ((step, given),) = told
    assert (step.step, step.samples, step.peers, step.seconds, step.time) == (1, 100, 4, 5.0, 5.0)
    assert {name: one.samples for name, one in given.items()} == {
        "asha": 15,
        "bina": 10 + 15,
        "chitra": 60,
        "organizer": 0,
    }
    assert given["asha"].session_samples == 150
    last(taken(2), {"chitra": gave(100)})
    assert [step.step for step, _ in told] == [1, 2]


def test_of_a_stage_that_never_comes_to_a_step_nothing_is_kept_for_ever() -> None:
    told = list[GlobalStep]()
    steps = Steps(2, lambda step, _: told.append(step))
    first, last = steps.of_stage(0, 0.5), steps.of_stage(1, 0.5)
    for number in range(1, KEPT_STEPS + 2):
        first(taken(number), {})
    last(taken(1), {})
    last(taken(2), {})
    assert [step.step for step in told] == [2]


def test_who_moves_within_a_step_goes_on_with_its_session_and_nothing_counts_twice() -> None:
    told = list[dict[str, Contribution]]()
    steps = Steps(2, lambda _, given: told.append(given))
    first, last = steps.of_stage(0, 0.25), steps.of_stage(1, 0.75)
    first(taken(1), {"asha": gave(40, 400)})  # 100 of all that it gave
    last(taken(1), {"asha": gave(20, 133 + 20)})  # as if these had been to this stage
    assert [(each.samples, each.session_samples) for each in (told[0]["asha"],)] == [(10 + 15, 115)]


def test_who_comes_back_within_a_step_has_begun_another_session() -> None:
    told = list[dict[str, Contribution]]()
    steps = Steps(2, lambda _, given: told.append(given))
    first, last = steps.of_stage(0, 0.25), steps.of_stage(1, 0.75)
    first(taken(1), {"asha": gave(40)})
    last(taken(1), {"asha": gave(20).model_copy(update={"session": "cd"})})
    assert [(each.samples, each.session_samples) for each in (told[0]["asha"],)] == [(10 + 15, 10 + 15)]


def test_the_shares_of_steps_add_up_to_that_of_the_session() -> None:
    told = list[dict[str, Contribution]]()
    steps = Steps(1, lambda _, given: told.append(given))
    for number in range(1, 8):
        steps.of_stage(0, 1 / 3)(taken(number), {"asha": gave(4, 4 * number)})
    assert sum(given["asha"].samples for given in told) == told[-1]["asha"].session_samples == 9


def test_a_coordinator_that_starts_again_believes_those_of_a_stage_who_brought_its_last_step(tmp_path: Path) -> None:
    def started() -> StagedBelief:
        return StagedBelief([belief(me="organizer") for _ in range(2)])

    def newest(stage: int, peer: str, of: StagedBelief) -> Position:
        return of._beliefs[stage].newest(START, {peer: progress(step=9, round="ab")}, 101.0)

    before = started()
    before._beliefs[0].took(7, 100.0, {"asha": 60, "bina": 40})
    before._beliefs[1].took(7, 100.0, {"chitra": 100})
    Memory(tmp_path, "r-01", "organizer", 1).update({}, parts=before.taken)
    after = started()
    after.remember(recall(tmp_path, "r-01").parts)
    after.took(7, 100.0, {"asha": 30, "bina": 20, "chitra": 50})
    assert after.taken == before.taken
    assert newest(0, "asha", after) == newest(1, "chitra", after) == Position(9, "ab")
    assert newest(0, "bina", after) == newest(1, "asha", after) == START

    forgotten = started()
    forgotten.took(7, 100.0, {"asha": 30, "bina": 20, "chitra": 50})
    assert [each.samples for each in forgotten.taken] == [{"asha": 30, "bina": 20, "chitra": 50}] * 2
    assert recall(tmp_path / "nowhere", "r-01").parts == ()
    assert Taken() not in forgotten.taken


def test_what_was_given_to_steps_that_the_coordinator_missed_is_asked_for_at_each_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = {"r.stage0": {"asha": gave(40)}, "r.stage1": {"bina": gave(60, 120)}}
    monkeypatch.setattr(pipeline_coordinator, "collect", lambda _dht, run_id, _batch, _reject: there[run_id])
    parts = [
        SimpleNamespace(optimizer=SimpleNamespace(run=SimpleNamespace(run_id=each, global_batch=9))) for each in there
    ]
    me: Any = SimpleNamespace(_parts=parts, _shares=[0.25, 0.75], dht=None)
    found = StagedPeer.collect(me, pytest.fail)
    assert [{peer: each.samples for peer, each in of_stage.items()} for of_stage in found] == [
        {"asha": 10},
        {"bina": 45},
    ]


def test_a_stage_is_told_to_decay_until_it_does_though_another_has_begun() -> None:
    told = list[tuple[str, str]]()

    def part(order: str) -> Any:
        return SimpleNamespace(
            decay_order=lambda steps: order,
            instruct=lambda said: told.append((order, said.decay_order)),
            state=SimpleNamespace(decay=None),
        )

    optimizer: Any = StagedOptimizer([part(""), part("b3JkZXI=")], Any, Any)  # type: ignore[arg-type]
    optimizer.instruct(
        Instructions(paused=False, last_step=None, announcement="", decay_order=optimizer.decay_order(3))
    )
    assert told == [("", ""), ("b3JkZXI=", "b3JkZXI=")]
