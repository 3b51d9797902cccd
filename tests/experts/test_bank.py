"""Experts take one step of the run's optimizer over the weighted mean, and nothing that cannot be right."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.experts import bank as banks
from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.experts.calls import Cell, ExpertName, Microbatch, counting
from dedloc_kit.experts.network import Network
from dedloc_kit.experts.refused import Refused
from dedloc_kit.learning.train.gradients.accumulator import MAX_STALENESS
from dedloc_kit.learning.train.optim.build import build_optimizer
from tests.experts.mixed_run import HIDDEN, WIDTH, mixed_run

NAME = ExpertName(2, 1, 0)
RATE = 0.02
LIMIT = 5e-4
"""Of the norm of a gradient: less than those of the test have."""


def full(room: int = banks.ROOM, **optimizer: Any) -> Bank:
    bank = Bank(mixed_run(optimizer), room)
    bank.hold_all()
    return bank


def tokens(seed: int, count: int = 5, scale: float = 1.0) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)) * scale


def tell(bank: Bank, seed: int, samples: int = 1, step: int = 1, scale: float = 1.0, sender: str = "") -> Tensor:
    """A forward and a backward call; returns the gradient of the inputs."""
    ticket = bank.keep(NAME, tokens(seed), Microbatch(step, samples), sender)
    return bank.learn(ticket, tokens(seed + 1000, scale=scale), sender)


def parameters(bank: Bank, name: ExpertName = NAME) -> list[Tensor]:
    return [tensor for key, tensor in bank.state(name)[0].items() if key.startswith("model.")]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def kind(bank: Bank, call: Any) -> str:
    """What was wrong with a call, which has changed nothing and is counted."""
    before, counted = parameters(bank), sum(bank.refused.values())
    with pytest.raises(Refused) as refused:
        call()
    assert same(before, parameters(bank))
    assert sum(bank.refused.values()) == counted + 1
    assert bank.refused[refused.value.kind] >= 1
    return refused.value.kind


def test_every_host_has_the_same_first_weights_and_every_expert_its_own() -> None:
    one, other = full(), full()
    names = names_of(mixed_run().experts)  # type: ignore[arg-type]
    assert len(names) == len(one.names) == 12
    assert [str(name) for name in names[-2:]] == ["2.1.1", "2.1.2"]
    assert all(same(parameters(one, name), parameters(other, name)) for name in names)
    assert not same(parameters(one, names[0]), parameters(one, names[1]))
    with pytest.raises(ValueError, match="no expert"):
        one.hold([ExpertName(1, 0, 0)])


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, {"name": "lamb"}, {"name": "lamb", "state_dtype": "8bit"}])
def test_a_step_is_one_of_the_runs_optimizer_over_the_mean_weighted_by_samples(optimizer: dict[str, Any]) -> None:
    run, bank = mixed_run({**optimizer, "max_grad_norm": LIMIT}), full(**optimizer, max_grad_norm=LIMIT)
    plain = Network(WIDTH, HIDDEN, seed_of(run.run_id, "expert", NAME))
    groups = [{"params": list(plain.parameters()), "weight_decay": run.optimizer.weight_decay}]
    own = build_optimizer(run.optimizer, groups)
    clipped = 0
    for step in (1, 2, 3):
        for seed, samples in ((10 * step, 1), (10 * step + 1, 6)):
            tell(bank, seed, samples, step, scale=0.1)
            (plain(tokens(seed)) * tokens(seed + 1000, scale=0.1) * samples / 16).sum().backward()
        clipped += bool(torch.nn.utils.clip_grad_norm_(plain.parameters(), LIMIT) > LIMIT)
        for group in own.param_groups:
            group["lr"] = RATE
        own.step()
        own.zero_grad()
        assert len(bank.take(step, 16, RATE)) == 12
    assert clipped, "an expert's gradient is held to the norm by itself"
    for mine, theirs in zip(parameters(bank), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_gradients_of_inputs_are_those_of_the_network() -> None:
    bank, run = full(), mixed_run()
    inputs = tokens(1).requires_grad_()
    Network(WIDTH, HIDDEN, seed_of(run.run_id, "expert", NAME))(inputs).backward(tokens(1001))
    assert inputs.grad is not None
    torch.testing.assert_close(tell(bank, 1), inputs.grad)


def test_an_expert_that_nobody_called_takes_its_step_with_a_gradient_of_zero() -> None:
    bank = full(weight_decay=0.5)
    before = parameters(bank)
    assert NAME in bank.take(1, 16, RATE)
    assert bank.state(NAME)[1] == 1
    assert all(torch.allclose(b * (1 - 0.5 * RATE), a) for a, b in zip(parameters(bank), before, strict=True))


def test_what_comes_late_goes_into_the_next_step_and_what_comes_early_waits_for_its_own() -> None:
    in_time, late, early = full(), full(), full()
    tell(early, 1, step=2)
    for bank in (in_time, late, early):
        bank.take(1, 16, 0.0)  # nothing moves, so that a gradient of before is one of afterwards
    assert same(parameters(in_time), parameters(early))
    tell(in_time, 1, step=2)
    tell(late, 1, step=1)
    for bank in (in_time, late, early):
        bank.take(2, 16, RATE)
    assert same(parameters(in_time), parameters(late))
    assert same(parameters(in_time), parameters(early))


def test_gradients_for_a_step_that_is_long_past_or_far_ahead_are_refused() -> None:
    bank = full()
    for step in range(1, MAX_STALENESS + 2):
        bank.take(step, 16, RATE)
    tell(bank, 1, step=2)
    assert kind(bank, lambda: tell(bank, 1, step=1)) == "stale"
    tell(bank, 1, step=MAX_STALENESS + 3)
    assert kind(bank, lambda: tell(bank, 1, step=MAX_STALENESS + 4)) == "ahead"


def test_a_step_is_taken_once_and_none_is_left_out() -> None:
    bank = full()
    assert bank.take(2, 16, RATE) == []
    assert len(bank.take(1, 16, RATE)) == 12
    assert bank.take(1, 16, RATE) == []


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_or_input_that_is_not_finite_is_refused(bad: float) -> None:
    bank = full()
    ticket = bank.keep(NAME, tokens(1), Microbatch(1, 1))
    gradient = tokens(2)
    gradient[3, 4] = bad
    assert kind(bank, lambda: bank.learn(ticket, gradient)) == "not finite"
    assert kind(bank, lambda: bank.output(NAME, gradient)) == "not finite"
    before = parameters(bank)
    bank.take(1, 16, 0.0)
    assert same(before, parameters(bank))


def test_a_gradient_that_overflows_on_its_way_is_refused() -> None:
    """Each number of it is finite, and so are the inputs."""
    bank = full()
    ticket = bank.keep(NAME, tokens(1, scale=1e25), Microbatch(1, 1))
    assert kind(bank, lambda: bank.learn(ticket, tokens(2))) == "not finite"


def test_gradients_that_are_not_finite_do_not_become_usual() -> None:
    bank = full()
    for seed in range(10):
        tell(bank, seed)
    for seed in range(40):
        assert kind(bank, lambda seed=seed: tell(bank, seed, scale=math.inf)) == "not finite"
    assert kind(bank, lambda: tell(bank, 20, scale=1000.0)) == "absurd"


def test_a_gradient_a_thousand_times_as_large_as_usual_is_refused() -> None:
    bank, other = full(), full()
    for each in (bank, other):
        for seed in range(10):
            tell(each, seed, scale=0.1)
        tell(each, 11, samples=16, scale=0.1 / 16)  # the mean over more samples is smaller
    assert kind(bank, lambda: tell(bank, 20, scale=100.0)) == "absurd"
    assert kind(bank, lambda: tell(bank, 20, samples=16, scale=100.0 / 16)) == "absurd"
    bank.take(1, 16, RATE)
    other.take(1, 16, RATE)
    assert same(parameters(bank), parameters(other))


def test_one_sender_does_not_make_it_usual_for_the_others() -> None:
    bank = full()
    for seed in range(10):
        tell(bank, seed, sender="honest")
        tell(bank, seed, sender="as honest")
    for seed in range(40):
        with pytest.raises(Refused):
            tell(bank, seed, scale=1000.0, sender="mad")
    for seed in range(40):
        tell(bank, seed, scale=1e-9, sender="faint")
    tell(bank, 1, sender="honest")
    assert kind(bank, lambda: tell(bank, 1, scale=1000.0, sender="mad")) == "absurd"


@pytest.mark.parametrize("samples", [0, -1, 17])
def test_nobody_counts_for_more_samples_than_a_batch_has_or_for_none(samples: int) -> None:
    bank = full()
    assert kind(bank, lambda: bank.keep(NAME, tokens(1), Microbatch(1, samples))) == "samples"


@pytest.mark.parametrize(
    "inputs",
    [torch.zeros(5, WIDTH + 1), torch.zeros(WIDTH), torch.zeros(0, WIDTH), torch.zeros(5, WIDTH, dtype=torch.float64)],
)
def test_tokens_of_another_width_or_type_are_refused(inputs: Tensor) -> None:
    bank = full()
    assert kind(bank, lambda: bank.output(NAME, inputs)) == "shape"
    ticket = bank.keep(NAME, tokens(1), Microbatch(1, 1))
    assert kind(bank, lambda: bank.learn(ticket, inputs)) == "shape"


def test_an_expert_that_is_not_here_is_not_asked_and_its_cell_is_not_alive() -> None:
    bank = full()
    bank.drop(NAME)
    assert kind_without(bank) == "unknown"
    assert bank.alive(0).all()
    assert bank.alive(2).tolist() == [[True, True, True], [False, True, True]]
    answers = bank.forward(2, {Cell(1, 0): tokens(1), Cell(1, 1): tokens(2)}, keep=True)
    assert answers.outputs.keys() == {Cell(1, 1)}


def kind_without(bank: Bank) -> str:
    with pytest.raises(Refused) as refused:
        bank.output(NAME, tokens(1))
    return refused.value.kind


def test_a_ticket_is_good_once_and_for_its_sender_alone() -> None:
    bank = full()
    ticket = bank.keep(NAME, tokens(1), Microbatch(1, 1), "one")
    assert kind(bank, lambda: bank.learn(ticket, tokens(2), "another")) == "forgotten"
    bank.learn(ticket, tokens(2), "one")
    assert kind(bank, lambda: bank.learn(ticket, tokens(2), "one")) == "forgotten"
    assert kind(bank, lambda: bank.learn("no ticket", tokens(2), "one")) == "forgotten"


def test_calls_outside_of_a_microbatch_are_answered_and_count_for_nothing() -> None:
    bank, untouched = full(), full()
    cell = NAME.cell
    answers = bank.forward(NAME.layer, {cell: tokens(1)}, keep=True)
    assert bank.backward(NAME.layer, answers.ticket, {cell: tokens(2)}).keys() == {cell}
    assert bank.forward(NAME.layer, {cell: tokens(1)}, keep=False).ticket is None
    bank.take(1, 16, RATE)
    untouched.take(1, 16, RATE)
    assert same(parameters(bank), parameters(untouched))
    with counting(Microbatch(2, 1)):
        answers = bank.forward(NAME.layer, {cell: tokens(1)}, keep=True)
    bank.backward(NAME.layer, answers.ticket, {cell: tokens(2)})
    bank.take(2, 16, RATE)
    untouched.take(2, 16, RATE)
    assert not same(parameters(bank), parameters(untouched))


def test_a_state_is_taken_over_by_another_host_which_then_takes_the_same_steps() -> None:
    one, other = full(), Bank(mixed_run())
    tell(one, 1)
    one.take(1, 16, RATE)
    other.load(NAME, *one.state(NAME))
    for bank in (one, other):
        tell(bank, 2, step=2)
        bank.take(2, 16, RATE)
    (mine, step), (theirs, their_step) = one.state(NAME), other.state(NAME)
    assert step == their_step == 2
    assert mine.keys() == theirs.keys()
    assert same(list(mine.values()), list(theirs.values()))
    assert other.names == [NAME]


def test_a_state_that_cannot_be_one_is_refused_and_changes_nothing() -> None:
    bank = full()
    tensors, _ = bank.state(NAME)
    wrong = [
        {name: tensor for name, tensor in tensors.items() if name != "model.up"},
        {**tensors, "model.up": tensors["model.up"][:-1]},
        {**tensors, "model.up": tensors["model.up"].double()},
        {**tensors, "model.up": tensors["model.up"] * math.nan},
    ]
    for each in wrong:
        before = parameters(bank)
        with pytest.raises(ValueError, match=r"tensors|up"):
            bank.load(NAME, each, 7)
        assert same(before, parameters(bank))
        assert bank.state(NAME)[1] == 0
