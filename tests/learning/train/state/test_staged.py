"""The states of stages as one state of a run."""

import re
import threading
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state import staged
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from tests.tiny import tiny_run

RUN = tiny_run(pipeline={"stages": 3}, averaging={"overlap": False})
WIDTHS = (2, 3, 4, 1)


def states() -> list[TrainingState]:
    torch.manual_seed(0)
    return [
        TrainingState(nn.Linear(*widths), lambda model: Lamb(model.parameters(), lr=0.1), RUN.of_stage(number))
        for number, widths in enumerate(pairwise(WIDTHS))
    ]


def whole(stages: Any) -> nn.Module:
    return nn.Sequential(*stages)


def step(state: TrainingState) -> None:
    round_id = f"{state.run.stage or 0:02x}{state.step:02x}"
    receipt = Receipt(step=state.step + 1, round=round_id, time=1.0, seconds=0.0, record=b"")
    state.apply(torch.ones(state.layout.size), receipt)


def test_all_stages_are_one_state_that_is_taken_over_again() -> None:
    parts = states()
    run = StagedState(RUN, whole, parts)
    assert (run.step, run.info.rounds, run.run_id, run.size) == (0, (), RUN.run_id, 6 + 3 + 12 + 4 + 4 + 1)
    for state in parts:
        step(state)
    found = run.copy()
    again = StagedState(RUN, whole, states())
    again.load_named(*found)
    assert (again.step, again.info) == (1, run.info)
    assert [state.round for state in again._states] == [state.round for state in parts]
    given = torch.ones(1, 2)
    wanted = nn.Sequential(*[state.model for state in parts])(given)
    for model in (again.model, run.model_of(found[0])):
        assert torch.equal(model(given), wanted)


def test_a_copy_waits_until_all_stages_are_at_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = states()
    run = StagedState(RUN, whole, parts)
    for state in parts[1:]:
        step(state)
    monkeypatch.setattr(staged, "SETTLED_SECONDS", 0.1)
    assert run.step == 0
    with pytest.raises(ValueError, match="not at the same step"):
        run.copy()
    monkeypatch.setattr(staged, "SETTLED_SECONDS", 60.0)
    late = threading.Timer(0.2, step, [parts[0]])
    late.start()
    assert run.copy()[1].step == 1
    late.join()


def test_a_state_of_another_number_of_stages_or_of_another_run_is_refused_and_nothing_changes() -> None:
    parts = states()
    for state in parts:
        step(state)
    tensors, info = StagedState(RUN, whole, parts).copy()
    run = StagedState(RUN, whole, states())
    for changed, why in (
        ({"rounds": info.rounds[:2]}, "2 stages, the run has 3"),
        ({"run_id": "x-01"}, "the run x-01"),
    ):
        with pytest.raises(ValueError, match=re.escape(why)):
            run.load_named(tensors, info.model_copy(update=changed))
    del tensors["stage2.model.weight"]
    with pytest.raises(ValueError, match="not those of the model"):
        run.load_named(tensors, info)
    assert run.step == 0


def test_stages_that_went_back_with_different_steps_have_not_gone_back() -> None:
    parts = states()
    run = StagedState(RUN, whole, parts)
    found = run.split(run.copy())

    def go_back(number: int, step: int) -> None:
        receipt = Receipt(step=step, round=f"{number:02x}{step:02x}", time=1.0, seconds=0.0, record=b"")
        parts[number].go_back(*found[number], receipt, 1.0)

    for number, step in enumerate((5, 5, 6)):
        go_back(number, step)
    assert run.rewound == 0
    for number in range(3):
        go_back(number, 7)
    assert run.rewound == 7
