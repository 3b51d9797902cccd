"""Tokens go to the best cells alive, and the term for balance pushes each dimension of the grid apart."""

import pytest
import torch
from torch import Tensor

from dedloc_kit.experts.gate import Gate, choose, imbalance


def scores(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_score_of_a_cell_is_the_sum_of_its_rows_and_its_columns_and_the_best_alive_are_chosen() -> None:
    rows, columns, alive = scores(50, 3), scores(50, 4, seed=1), torch.ones(3, 4, dtype=torch.bool)
    alive[1, 2] = alive[0, 0] = False
    chosen = choose(rows, columns, alive, 3)
    for token in range(50):
        cells = [(row, column) for row in range(3) for column in range(4) if alive[row, column]]
        best = sorted(cells, key=lambda cell: -float(rows[token, cell[0]] + columns[token, cell[1]]))[:3]
        assert [divmod(cell, 4) for cell in chosen.cells[token].tolist()] == best
        found = [float(rows[token, row] + columns[token, column]) for row, column in best]
        assert chosen.scores[token].tolist() == pytest.approx(found)
    assert chosen.there.all()


def test_where_fewer_are_alive_than_are_to_be_chosen_the_rest_is_not_there() -> None:
    alive = torch.zeros(2, 2, dtype=torch.bool)
    rows, columns = scores(5, 2), scores(5, 2, seed=1)
    assert not choose(rows, columns, alive, 2).there.any()
    assert imbalance(rows, columns, alive, choose(rows, columns, alive, 2)) == 0.0
    alive[1, 0] = True
    chosen = choose(rows, columns, alive, 2)
    assert chosen.there.sum(1).tolist() == [1] * 5
    assert (chosen.cells[chosen.there] == 2).all()
    assert chosen.scores.isfinite().all()


def test_a_grid_of_the_largest_size_is_searched_at_once() -> None:
    gate = Gate(16, (64, 64), 0)
    rows, columns = gate(scores(100, 16))
    chosen = choose(rows, columns, torch.ones(64, 64, dtype=torch.bool), 4)
    best = [int(rows[token].argmax()) * 64 + int(columns[token].argmax()) for token in range(100)]
    assert chosen.cells[:, 0].tolist() == best


@pytest.mark.parametrize("dimension", [0, 1])
def test_the_term_has_a_gradient_in_each_dimension_which_takes_from_what_is_used_most(dimension: int) -> None:
    """In the reference the gradient is some 1e-9 where it should be 1e-2: it is lost between the dimensions."""
    alive = torch.ones(4, 4, dtype=torch.bool)
    both = [scores(64, 4) * 0.1, scores(64, 4, seed=1) * 0.1]
    both[dimension][:, 2] += 0.5
    both = [each.requires_grad_() for each in both]
    rows, columns = both
    term = imbalance(rows, columns, alive, choose(rows, columns, alive, 2))
    term.backward()
    assert term > 0.1
    gradient = both[dimension].grad
    assert gradient is not None
    pushed = gradient.sum(0)
    assert pushed[2] > 0.01
    assert pushed.argmax() == 2
    assert (pushed[[0, 1, 3]] < 0).all()


def test_the_term_is_nothing_where_all_that_are_alive_are_used_alike() -> None:
    alive = torch.ones(3, 2, dtype=torch.bool)
    alive[2] = False
    rows, columns = torch.eye(3)[[0, 1]] * 5, torch.eye(2) * 5
    assert imbalance(rows, columns, alive, choose(rows, columns, alive, 4)) == pytest.approx(0.0, abs=1e-6)
    rows, columns = rows[[0, 0]], torch.eye(2)
    assert imbalance(rows, columns, alive, choose(rows, columns, alive, 2)) > 0.5


def test_descending_along_the_term_makes_use_even() -> None:
    alive = torch.ones(4, 4, dtype=torch.bool)
    gate, tokens = Gate(16, (4, 4), 0), scores(512, 16) + 1.0  # a common direction, which all gates see
    optimizer = torch.optim.Adam(gate.parameters(), lr=0.02)

    def most() -> float:
        rows, columns = gate(tokens)
        used = torch.bincount(choose(rows, columns, alive, 2).cells.flatten(), minlength=16)
        return float(used.max() / used.float().mean())

    before = most()
    for _ in range(60):
        optimizer.zero_grad()
        rows, columns = gate(tokens)
        imbalance(rows, columns, alive, choose(rows, columns, alive, 2)).backward()
        optimizer.step()
    assert before > 2.5
    assert most() < 1.8
