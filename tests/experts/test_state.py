"""Trunk and experts of a run as one state."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from dedloc_kit.coordinator.resuming import resume
from dedloc_kit.errors import UserError
from dedloc_kit.experts import state as module
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.state import Take
from dedloc_kit.experts.stored import Stored
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from tests.experts.mixed_states import (
    EXPERT,
    RUN,
    TASK,
    fresh,
    given_away,
    hosted,
    receipt,
    same,
    step,
    teach,
    trunk_steps,
)
from tests.tiny import WIDTH


def test_a_coordinator_that_starts_again_has_trunk_and_experts_of_the_same_step(tmp_path: Path) -> None:
    state, checkpoints = fresh(), Checkpoints(tmp_path)
    step(state)
    step(state)
    checkpoints.save(*state.copy())
    again = fresh()
    assert not resume(again, checkpoints, None)
    assert again.step == 2
    assert set(again.bank.steps(again.bank.names)) == {2}
    assert same(again, state)
    step(again)
    step(state)
    assert same(again, state), "the moments are those of before, too"


def test_a_checkpoint_without_an_expert_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    state, checkpoints = fresh(), Checkpoints(tmp_path)
    step(state)
    tensors, info = state.copy()
    checkpoints.save({name: each for name, each in tensors.items() if not name.startswith("experts.0.1.2.")}, info)
    again = fresh()
    with pytest.raises(UserError, match="its experts are not those of the run"):
        resume(again, checkpoints, None)
    assert same(again, fresh())
    bad = {**tensors, f"experts.{EXPERT}.model.up": torch.full((12, WIDTH), torch.nan)}
    with pytest.raises(ValueError, match="not finite"):
        again.load_named(bad, info)
    assert same(again, fresh())


def test_a_copy_waits_until_the_experts_have_taken_the_step_and_if_nobody_tells_of_it_they_take_it_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = fresh()
    teach(state)
    trunk_steps(state)
    slept = list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        state.take(1, 40)

    monkeypatch.setattr("time.sleep", sleep)
    tensors, info = state.copy()
    expected = fresh()
    step(expected)
    assert len(slept) == 1
    assert info.step == 1
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in expected.copy()[0].items())
    monkeypatch.setattr(module, "SETTLED_SECONDS", -1.0)
    trunk_steps(state)
    assert state.copy()[1].step == 2
    assert len(slept) == 1
    assert set(state.bank.steps(state.bank.names)) == {2}


def test_steps_that_nobody_has_told_of_are_taken_with_the_next_one() -> None:
    state, one_by_one = fresh(), fresh()
    for _ in range(3):
        trunk_steps(state)
        one_by_one.take(trunk_steps(one_by_one), 40)
    state.take(3, 40)
    assert same(state, one_by_one)


def test_going_back_takes_the_experts_along() -> None:
    state = fresh()
    step(state)
    tensors, info = state.copy()
    step(state)
    told = list[int]()
    hosted(state, lambda names, step, take: None, lambda: told.append(state.bank.steps([EXPERT])[0]))
    state.go_back(tensors, info, receipt(3), 0.5)
    assert told == [3], "hosts begin anew with what is here then"
    found, now = state.copy()
    assert now.step == 3
    assert all(torch.equal(found[name], each) for name, each in tensors.items() if name.startswith("experts."))
    before = found[f"experts.{EXPERT}.model.up"]
    step(state)
    assert not torch.equal(state.copy()[0][f"experts.{EXPERT}.model.up"], before), "it goes on from there"


def test_what_is_measured_stays_as_it_is_while_the_run_goes_on() -> None:
    state = fresh()
    model, position = state.snapshot()
    before = TASK.evaluate(model).loss
    step(state)
    assert position.step == 0
    assert TASK.evaluate(model).loss == before
    assert TASK.evaluate(state.snapshot()[0]).loss != before


def test_a_model_that_is_made_of_a_copy_has_the_experts_of_that_copy() -> None:
    state = fresh()
    step(state)
    (tensors, _), (then, _) = state.copy(), state.snapshot()
    step(state)
    assert TASK.evaluate(state.model_of(tensors)).loss == TASK.evaluate(then).loss
    assert TASK.evaluate(state.snapshot()[0]).loss != TASK.evaluate(then).loss


def test_a_checkpoint_holds_what_others_keep_as_it_was_after_the_same_step_or_there_is_none() -> None:
    state, right, news = fresh(), fresh(), list[object]()
    for each in (state, right):
        step(each)
    assert state.keeping.followed_by(EXPERT, news.append) is not None
    state.keeping.give(EXPERT, news.append)
    state.keeping.drop(EXPERT)
    assert same(state, right), "what is known of it is of this step"
    step(right)
    state.take(trunk_steps(state), 40)
    asked = list[tuple[list[ExpertName], int]]()
    host = right.bank.state(EXPERT)

    def fetch(names: Sequence[ExpertName], step: int, take: Take) -> None:
        asked.append((list(names), step))
        if len(asked) == 1:
            take(EXPERT, (host[0], step - 1))

    hosted(state, fetch)
    with pytest.raises(ValueError, match="not all hosts"):
        state.copy()
    assert asked == [([EXPERT], 2)] * module.ATTEMPTS
    hosted(state, lambda names, step, take: take(EXPERT, (host[0], step)))
    found, _ = state.copy()
    assert all(torch.equal(found[f"experts.{EXPERT}.{key}"], each) for key, each in host[0].items())
    _, position = state.snapshot()
    assert position.step == 2
    state.take(trunk_steps(state), 40)
    tensors, newest = state.known(EXPERT)
    assert newest == 3, "what it has learned since is lost, and it goes on with the others"
    assert torch.equal(tensors["model.up"], host[0]["model.up"])


def test_of_experts_that_others_keep_one_after_the_other_is_fetched_if_it_has_learned_since() -> None:
    state, asked = fresh(), list[tuple[list[ExpertName], int]]()
    hosted(state, lambda names, step, take: asked.append((list(names), step)))
    state.renew_one()
    assert not asked, "all are here"
    for name in (first := state.bank.names[1], EXPERT):
        state.keeping.hold(name, state.bank.state(name))
        state.keeping.drop(name)
    state.renew_one()
    assert not asked, "what is known of them is of this step"
    trunk_steps(state)
    for _ in range(3):
        state.renew_one()
    assert asked == [([first], 1), ([EXPERT], 1), ([first], 1)], "who does not give one holds up no other"


def test_an_organizer_that_begins_again_behind_the_swarm_goes_on_from_its_newest_copies(tmp_path: Path) -> None:
    folder = tmp_path / "experts"
    state, again = fresh(), fresh()
    state.have_hosts(lambda *_: None, lambda: None, Stored(folder, RUN.run_id))
    for each in (state, again):
        step(each)
    found, info = again.copy()
    step(state)
    right = state.bank.state(EXPERT)[0]
    given_away(state)
    state.renew_one()
    assert [path.name for path in folder.iterdir()] == [f"{EXPERT}.safetensors"]

    later = fresh()
    later.load_named(found, info)
    later.have_hosts(lambda *_: None, lambda: None, Stored(folder, RUN.run_id))
    later.take(3, 40)  # the swarm has taken two steps since the checkpoint
    expected = fresh()
    expected.bank.load(EXPERT, right, 2)
    expected.bank.take(3, 40, expected.rate_of(3))
    assert torch.equal(later.bank.state(EXPERT)[0]["model.up"], expected.bank.state(EXPERT)[0]["model.up"])
    assert not list(folder.iterdir())


def test_an_organizer_that_begins_again_alone_takes_no_copy_of_a_later_step(tmp_path: Path) -> None:
    state, alone = fresh(), fresh()
    state.have_hosts(lambda *_: None, lambda: None, Stored(tmp_path, RUN.run_id))
    found, info = state.copy()
    step(state)
    given_away(state)
    state.renew_one()
    later = fresh()
    later.load_named(found, info)
    later.have_hosts(lambda *_: None, lambda: None, Stored(tmp_path, RUN.run_id))
    for each in (later, alone):
        each.take(trunk_steps(each), 40)
    assert same(later, alone)
