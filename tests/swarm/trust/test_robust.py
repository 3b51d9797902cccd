"""Means of what members send, none of whom counts for more than is usual."""

import math

import pytest
import torch
from torch import Tensor

from dedloc_kit.swarm.trust.robust import clipped_mean, shrinkage

SIZE = 50_000


def mean_of(parts: list[Tensor], weights: list[int]) -> Tensor:
    out = torch.full((SIZE,), math.nan)
    clipped_mean(parts, weights, out)
    return out


def honest_parts(weights: list[int], signal: float) -> list[Tensor]:
    """Gradients of so many samples each: what they have in common, and noise."""
    torch.manual_seed(0)
    common = torch.randn(SIZE) * signal
    return [common + torch.randn(SIZE) / math.sqrt(weight) for weight in weights]


@pytest.mark.parametrize("signal", [0.0, 0.1, 3.0])
def test_honest_parts_are_hardly_cut_however_unequal_their_samples(signal: float) -> None:
    weights = [2, 8, 8, 16, 128, 3, 16, 512, 1]
    parts = honest_parts(weights, signal)
    shares = torch.tensor(weights, dtype=torch.float64)
    plain = (shares / shares.sum()) @ torch.stack(parts).double()
    assert float((mean_of(parts, weights) - plain).norm() / plain.norm()) < 0.01


@pytest.mark.parametrize("hostile", [1000.0, -1e30, 4e37])
def test_fewer_than_half_move_a_mean_by_a_bounded_length_whatever_they_send(hostile: float) -> None:
    parts = honest_parts([8] * 9, 1.0)
    lengths = sorted(float(part.norm()) for part in parts)
    liars = [part * hostile if abs(hostile) < 1e4 else torch.full((SIZE,), hostile) for part in parts[:7]]
    mean = mean_of(parts + liars, [8] * 16)
    honest = torch.stack(parts).sum(dim=0) / 16
    assert float((mean - honest).norm()) <= lengths[-1] * 7 / 16 + 0.01 * float(honest.norm())


def test_who_claims_few_samples_does_no_more_with_the_longer_part_that_it_is_granted() -> None:
    parts = honest_parts([64] * 3, 1.0)
    loud = torch.ones(SIZE) * 1e6
    harm = [
        float((mean_of([*parts, loud], [64, 64, 64, weight]) - mean_of(parts, [64] * 3)).norm())
        for weight in (64, 16, 4, 1)
    ]
    assert harm == sorted(harm, reverse=True)


def test_what_most_have_nothing_to_say_of_is_learned_from_the_others() -> None:
    parts = [torch.zeros(SIZE) for _ in range(6)] + honest_parts([8] * 3, 1.0)
    mean = torch.stack(parts).mean(dim=0)
    assert float((mean_of(parts, [8] * 9) - mean).norm() / mean.norm()) < 0.01
    assert shrinkage([0.0] * 4 + [1.0, 1000.0], [8] * 6) == [1.0] * 5 + [0.001], "the quietest is the measure"
    assert torch.equal(mean_of([torch.zeros(SIZE)] * 3, [8] * 3), torch.zeros(SIZE))


def test_the_mean_is_a_sum_in_the_order_of_the_roll_and_nothing_else() -> None:
    """So that others can make it again: products and sums alone, each rounded once."""
    weights = [3, 5, 9]
    parts = honest_parts(weights, 1.0)
    total = torch.zeros(SIZE)
    for part, weight in zip(parts, weights, strict=True):
        total = total + part * torch.tensor(weight / 17)
    assert torch.equal(mean_of(parts, weights), total)
