"""States with trunk and experts of the tiny mixture, and steps that they take."""

from collections.abc import Callable
from typing import Any

import torch

from dedloc_kit.experts.calls import ExpertName, Microbatch, counting
from dedloc_kit.experts.state import Fetch, MixedState
from dedloc_kit.experts.stored import Stored
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.records.steps import Receipt
from tests.tiny import WIDTH
from tests.tiny_mixed import TinyMixed, mixed_run

RUN = mixed_run()
TASK = TinyMixed(RUN)
EXPERT = ExpertName(0, 1, 2)


def fresh() -> MixedState:
    groups = TASK.groups
    state = MixedState(TASK.model(), lambda model: build_optimizer(RUN.optimizer, groups(model)), RUN)
    state.bank.hold_all()
    return state


def hosted(state: MixedState, fetch: Fetch, begin_anew: Callable[[], object] = lambda: None) -> None:
    """Copies stay in memory."""
    state.have_hosts(fetch, begin_anew, Stored(None, RUN.run_id))


def receipt(step: int, **values: Any) -> Receipt:
    return Receipt(step=step, round=f"{step:040x}", time=1.0, seconds=1.0, record=b"", **values)


def trunk_steps(state: MixedState) -> int:
    """Let the trunk take one; returns its number."""
    state.apply(torch.ones(state.layout.size), receipt(state.step + 1))
    return state.step


def teach(state: MixedState) -> None:
    """Gradients of ten samples for the next step."""
    inputs = {EXPERT.cell: torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))}
    with counting(Microbatch(state.step + 1, 10)):
        answers = state.bank.forward(EXPERT.layer, inputs, keep=True)
    state.bank.backward(EXPERT.layer, answers.ticket, inputs)


def step(state: MixedState) -> None:
    """One with all that belongs to it."""
    teach(state)
    state.take(trunk_steps(state), 40)


def same(one: MixedState, other: MixedState) -> bool:
    (mine, info), (theirs, their_info) = one.copy(), other.copy()
    return info == their_info and all(torch.equal(tensor, theirs[name]) for name, tensor in mine.items())


def given_away(state: MixedState) -> None:
    """The expert is a host's."""
    assert state.keeping.followed_by(EXPERT, print) is not None
    state.keeping.give(EXPERT, print)
    state.keeping.drop(EXPERT)
