"""The device of the tests counts what a GPU has to be waited for, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.learning.counting_device import DEVICE, counting, move

WAITING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda values: values.sum().item(),
    "truth": lambda values: bool(values.sum() > 0),
    "list": lambda values: values.tolist(),
    "copy": lambda values: values.cpu(),
    "filled": lambda values: torch.tensor([1.0, 2.0], device=DEVICE),
    "like": lambda values: values.new_tensor([1.0]),
    "boolean": lambda values: values[values > 2],
    "boolean filled": lambda values: values.clone().__setitem__(values > 2, 0.0),
    "listed": lambda values: values[[1, 3]],
    "nonzero": lambda values: values.nonzero(),
    "inverse": lambda values: torch.eye(3, device=DEVICE).inverse(),
}
LAUNCHED: dict[str, Callable[[Tensor], object]] = {
    "places": lambda values: values[torch.arange(2, device=DEVICE)],
    "chosen": lambda values: torch.where(values > 2, values, 0.0).cumsum(0),
    "masked": lambda values: values.clone().masked_fill_(values.sum() > 2, 0.0),
    "made": lambda values: torch.zeros(3, device=DEVICE) + torch.arange(3, device=DEVICE),
    "copied": lambda values: torch.zeros(3).to(DEVICE, non_blocking=True),
}


@pytest.mark.parametrize("name", [*WAITING, *LAUNCHED])
def test_it_counts_what_waits(name: str) -> None:
    values = torch.arange(6.0).to(DEVICE)
    with counting() as counts:
        (WAITING | LAUNCHED)[name](values)
    assert (counts.waits.total() > 0) is (name in WAITING), counts.waits


def test_it_tells_of_float64() -> None:
    values = torch.arange(6.0).to(DEVICE)
    with counting() as counts:
        values.mul(2.0).norm()
        assert not counts.double
        values.double()
    assert counts.double


def test_modules_that_share_a_parameter_share_it_there_and_gradients_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    given = torch.randn(3, 4)
    model(given).square().sum().backward()
    expected = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    there: Any = move(model)
    assert there[2].weight is there[0].weight
    there(given.to(DEVICE)).square().sum().backward()
    found = [each.grad.cpu() for each in there.parameters() if each.grad is not None]
    assert len(found) == len(expected) == 3
    assert all(map(torch.allclose, found, expected))
