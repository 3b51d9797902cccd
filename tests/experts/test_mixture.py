"""A mixture is what the same formula is that is written densely, and whoever fails costs a token only that expert."""

import copy
import math
from collections.abc import Mapping, Set

import pytest
import torch
from torch import Tensor, nn

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.experts.bank import Bank
from dedloc_kit.experts.calls import Answers, Cell, ExpertName, Microbatch, Ticket, counting
from dedloc_kit.experts.mixture import Mixture, connect, imbalance_of
from dedloc_kit.experts.network import Network
from dedloc_kit.learning.train.computing.checkpointing import Checkpointing
from dedloc_kit.learning.train.computing.loss_scale import loss_scaled
from tests.experts.mixed_run import HIDDEN, WIDTH, mixed_run

RUN = mixed_run()
LAYER = 2
CELLS = [Cell(row, column) for row in range(2) for column in range(3)]


class Failing:
    """Experts of a bank of which some are dead, do not answer, or do not answer backward calls."""

    def __init__(self, bank: Bank, dead: Set[Cell], silent: Set[Cell], mute: Set[Cell]) -> None:
        self.bank, self.dead, self.silent, self.mute = bank, dead, silent, mute
        self.given: list[Mapping[Cell, Tensor]] = []

    def alive(self, layer: int) -> Tensor:
        alive = self.bank.alive(layer)
        for cell in self.dead:
            alive[cell] = False
        return alive

    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        assert not inputs.keys() & self.dead
        return self.bank.forward(layer, {cell: x for cell, x in inputs.items() if cell not in self.silent}, keep)

    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> Mapping[Cell, Tensor]:
        self.given.append(gradients)
        told = {cell: each for cell, each in gradients.items() if cell not in self.mute}
        return self.bank.backward(layer, ticket, told)


def layer_with(
    dead: Set[Cell] = frozenset(), silent: Set[Cell] = frozenset(), mute: Set[Cell] = frozenset()
) -> tuple[Mixture, Failing]:
    bank = Bank(RUN)
    bank.hold_all()
    assert RUN.experts is not None
    mixture, experts = Mixture(LAYER, RUN.experts, seed=3), Failing(bank, dead, silent, mute)
    with torch.no_grad():
        for parameter in mixture.parameters():
            parameter.mul_(50)  # scores that differ
    connect(mixture, experts)
    return mixture, experts


def hidden(count: int = 40) -> Tensor:
    return torch.randn(2, count // 2, WIDTH, generator=torch.Generator().manual_seed(5))


class Dense(nn.Module):
    """The same formula: all experts for all tokens."""

    def __init__(self, mixture: Mixture, dead: Set[Cell], silent: Set[Cell], mute: Set[Cell]) -> None:
        super().__init__()
        self.gate = copy.deepcopy(mixture.gate)
        seeds = [seed_of(RUN.run_id, "expert", ExpertName(LAYER, *cell)) for cell in CELLS]
        self.experts = nn.ModuleList(Network(WIDTH, HIDDEN, seed) for seed in seeds)
        self.dead, self.silent, self.mute = dead, silent, mute

    def forward(self, tokens: Tensor) -> Tensor:
        rows, columns = tokens @ self.gate.rows.T, tokens @ self.gate.columns.T
        made = []
        for token in range(len(tokens)):
            scores = {cell: rows[token, cell.row] + columns[token, cell.column] for cell in CELLS}
            living = [cell for cell in CELLS if cell not in self.dead]
            best = sorted(living, key=lambda cell: -float(scores[cell]))[:2]
            answered = [cell for cell in best if cell not in self.silent]
            total = torch.zeros(WIDTH)
            if answered:
                weights = torch.stack([scores[cell] for cell in answered]).softmax(0)
                for weight, cell in zip(weights, answered, strict=True):
                    given = tokens[token].detach() if cell in self.mute else tokens[token]
                    output = self.experts[CELLS.index(cell)](given[None])[0]
                    total = total + weight * (output.detach() if cell in self.mute else output)
            made.append(total)
        return torch.stack(made)


ONE, TWO = Cell(0, 1), Cell(1, 2)


@pytest.mark.parametrize(
    ("dead", "silent", "mute"),
    [
        (set(), set(), set()),
        ({ONE}, set(), set()),
        (set(), {ONE, TWO}, set()),
        (set(), set(), {ONE, TWO}),
        ({ONE}, {TWO, Cell(0, 0)}, {Cell(1, 1)}),
        (set(CELLS) - {ONE}, set(), set()),
        (set(CELLS), set(), set()),
        (set(), set(CELLS), set()),
    ],
)
def test_outputs_and_gradients_are_those_of_the_formula_written_densely(
    dead: Set[Cell], silent: Set[Cell], mute: Set[Cell]
) -> None:
    mixture, experts = layer_with(dead, silent, mute)
    dense = Dense(mixture, dead, silent, mute)
    ours, theirs = hidden().requires_grad_(), hidden().flatten(0, 1).requires_grad_()
    weights = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(6))
    with counting(Microbatch(1, RUN.global_batch)):
        made = mixture(ours)
    (made.flatten(0, 1) * weights).sum().backward()
    expected = dense(theirs)
    if expected.requires_grad:
        (expected * weights).sum().backward()
    torch.testing.assert_close(made.flatten(0, 1), expected, rtol=1e-6, atol=1e-6)
    assert ours.grad is not None
    close(ours.grad.flatten(0, 1), theirs.grad)
    close(mixture.gate.rows.grad, dense.gate.rows.grad)
    close(mixture.gate.columns.grad, dense.gate.columns.grad)
    told = {name: experts.bank._expert(name)._sums.get(1) for name in experts.bank.names if name.layer == LAYER}
    for cell, network in zip(CELLS, dense.experts, strict=True):
        each = told[ExpertName(LAYER, *cell)]
        views = (
            experts.bank._expert(ExpertName(LAYER, *cell)).layout.views(each.total) if each is not None else [None] * 3
        )
        for view, parameter in zip(views, network.parameters(), strict=True):
            close(view / RUN.global_batch if view is not None else None, parameter.grad)


def close(ours: Tensor | None, theirs: Tensor | None) -> None:
    """No gradient is one of zero."""
    zeros = torch.zeros(())
    one, other = (zeros if each is None else each for each in (ours, theirs))
    torch.testing.assert_close(*torch.broadcast_tensors(one, other), rtol=1e-6, atol=1e-6)


def test_a_token_whose_experts_all_failed_keeps_its_residual_and_spoils_nothing() -> None:
    mixture, _ = layer_with(silent=set(CELLS))
    given = hidden().requires_grad_()
    (given + mixture(given)).square().sum().backward()
    assert given.grad is not None
    assert torch.equal(mixture(given), torch.zeros_like(given))
    torch.testing.assert_close(given.grad, 2 * given.detach())
    assert mixture.gate.rows.grad is not None
    assert not mixture.gate.rows.grad.any()


def test_what_the_loss_is_scaled_with_does_not_reach_the_experts() -> None:
    sums = []
    for scale in (1.0, 1024.0):
        mixture, experts = layer_with()
        given = hidden().requires_grad_()
        with counting(Microbatch(1, 1)), loss_scaled(scale):
            made = mixture(given).sum() * scale
        made.backward()
        assert given.grad is not None
        sums.append([given.grad / scale, *experts.bank._expert(ExpertName(LAYER, 0, 0))._sums.values()])
    for plain, scaled in zip(*sums, strict=True):
        torch.testing.assert_close(plain, scaled)


def test_nobody_is_sent_a_gradient_that_is_not_finite() -> None:
    mixture, experts = layer_with()
    made = mixture(hidden().requires_grad_())
    gradient = torch.zeros_like(made)
    gradient[0, 3, 2] = math.nan
    made.backward(gradient)
    assert len(experts.given[0]) == len(CELLS) - 2
    assert not experts.bank.refused


def test_without_gradients_nothing_is_kept_and_no_term_for_balance_either() -> None:
    mixture, experts = layer_with()
    with torch.inference_mode():
        made = mixture(hidden())
    assert made.abs().sum() > 0
    assert experts.bank._kept.size == 0
    assert imbalance_of(mixture) == 0.0


def test_the_term_for_balance_is_told_once() -> None:
    mixture, _ = layer_with()
    mixture(hidden())
    assert imbalance_of(mixture) > 0.0
    assert imbalance_of(mixture) == 0.0


def test_copies_of_a_model_call_the_same_experts() -> None:
    mixture, _ = layer_with()
    twin = copy.deepcopy(mixture)
    assert torch.equal(twin(hidden()), mixture(hidden()))
    connect(mixture, layer_with(silent=set(CELLS))[1])
    assert not twin(hidden()).any()


def test_half_precision_around_it_changes_neither_choice_nor_experts() -> None:
    mixture, _ = layer_with()
    given = hidden().bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = mixture(given)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, mixture(given.float()).bfloat16())


def test_to_save_memory_no_expert_is_asked_twice() -> None:
    mixture, _ = layer_with()
    model = nn.Sequential(nn.ModuleList([mixture]))
    assert not Checkpointing(model).possible
