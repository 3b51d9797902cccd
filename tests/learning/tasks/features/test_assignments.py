"""SwAV's numerical pieces against double-precision references written from the paper."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dedloc_kit.learning.tasks.features.assignments import FeatureQueue, sinkhorn, swapped_loss

Array = NDArray[np.float64]


def reference_sinkhorn(scores: Array, epsilon: float, iterations: int) -> Array:
    """Equation 5: Q = Diag(u) exp(C^T Z / epsilon) Diag(v), prototypes by samples; columns end with the sum 1 / B."""
    kernel = np.exp(scores.T / epsilon)
    prototypes, samples = kernel.shape
    v = np.ones(samples)
    for _ in range(iterations):
        u = (np.ones(prototypes) / prototypes) / (kernel @ v)
        v = (np.ones(samples) / samples) / (kernel.T @ u)
    return np.asarray((u[:, None] * kernel * v[None, :] * samples).T)


def reference_loss(scores: list[Array], assignments: list[Array], temperature: float) -> float:
    """Equations 2 and 6, one sample and one pair of crops at a time."""
    losses = []
    for number, shares in enumerate(assignments):
        for other, each in enumerate(scores):
            if other == number:
                continue
            for q, score in zip(shares, each, strict=True):
                p = [math.exp(value / temperature) for value in score]
                losses.append(-sum(a * math.log(b / sum(p)) for a, b in zip(q, p, strict=True)))
    return float(sum(losses) / len(losses))


def cosines(samples: int, prototypes: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(samples, prototypes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize(("samples", "prototypes"), [(1, 1), (4, 16), (64, 10)])
@pytest.mark.parametrize(("epsilon", "iterations"), [(0.05, 3), (0.03, 3), (0.03, 1), (0.2, 50)])
def test_assignments_equal_the_paper(samples: int, prototypes: int, epsilon: float, iterations: int) -> None:
    scores = cosines(samples, prototypes)
    expected = torch.from_numpy(reference_sinkhorn(scores.numpy(), epsilon, iterations))
    torch.testing.assert_close(sinkhorn(scores.float(), epsilon, iterations).double(), expected, rtol=1e-4, atol=1e-6)


def test_assignments_spread_over_all_prototypes_and_stay_finite_at_a_small_epsilon() -> None:
    scores = cosines(256, 8) * 0.1
    scores[:, 0] += 0.8  # all like the same prototype best
    shares = sinkhorn(scores, 0.05, 100)
    assert shares.sum(0).tolist() == pytest.approx([32.0] * 8, rel=0.01)
    assert shares.sum(1).tolist() == pytest.approx([1.0] * 256, rel=1e-4)
    assert sinkhorn(scores, 0.001, 3).isfinite().all()


@pytest.mark.parametrize("crops", [2, 5])
def test_the_loss_equals_the_paper(crops: int) -> None:
    scores = [cosines(6, 9, seed) for seed in range(crops)]
    assignments = [torch.from_numpy(reference_sinkhorn(each.numpy(), 0.05, 3)) for each in scores[:2]]
    expected = reference_loss([each.numpy() for each in scores], [each.numpy() for each in assignments], 0.1)
    found = swapped_loss([each.float() for each in scores], [each.float() for each in assignments], 0.1)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_a_queue_is_empty_until_it_is_full_and_then_holds_the_latest() -> None:
    queue = FeatureQueue(4)
    for number in range(3):
        assert (queue.before(step=8) == []) == (number < 2)
        queue.add([torch.full((2, 1), float(number)), torch.full((2, 1), -float(number))])
    first, second = queue.before(step=8)
    assert first.flatten().tolist() == [1.0, 1.0, 2.0, 2.0]
    assert second.flatten().tolist() == [-1.0, -1.0, -2.0, -2.0]
    queue.add([torch.arange(6.0)[:, None]] * 2)
    assert queue.before(step=8)[0].flatten().tolist() == [2.0, 3.0, 4.0, 5.0]


def test_a_queue_forgets_what_came_before_a_jump_in_the_steps() -> None:
    queue = FeatureQueue(2)
    queue.add([torch.zeros(2, 1)])
    assert queue.before(step=1)
    assert not queue.before(step=40), "these features are of weights that are long gone"
    queue.add([torch.ones(2, 1)])
    assert queue.before(step=41)


def test_a_queue_keeps_no_gradient_and_no_more_than_its_length() -> None:
    queue = FeatureQueue(3)
    queue.add([torch.ones(500, 2, requires_grad=True)])
    (kept,) = queue.before(step=0)
    assert not kept.requires_grad
    assert len(kept) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_queue_takes_nothing_of_a_microbatch_with_one_number_that_is_not_finite(value: float) -> None:
    queue = FeatureQueue(4)
    bad = torch.ones(2, 1)
    bad[1] = value
    for number in (1.0, 2.0):
        queue.add([bad, torch.ones(2, 1)])  # of one crop: its other half would stand at another sample's place
        queue.add([torch.full((2, 1), number)] * 2)
    queue.add([torch.full((6, 1), value)] * 2)
    for kept in queue.before(step=1):
        assert kept.flatten().tolist() == [1.0, 1.0, 2.0, 2.0]


def test_a_queue_lets_few_samples_spread_as_many_do() -> None:
    """Four samples of one cluster alone are torn apart; beside 256 others each goes where it would in a large batch."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.nn.functional.normalize(torch.randn(16, 32, generator=generator))
    clusters = torch.randint(16, (256,), generator=generator)
    noise = 0.05 * torch.randn(256, 32, generator=generator)
    features = torch.nn.functional.normalize(prototypes[clusters] + noise)
    scores = features @ prototypes.T
    truth = sinkhorn(scores, 0.05, 3)[clusters == clusters[0]][:4]
    alike = scores[clusters == clusters[0]][:4]
    with_queue = sinkhorn(torch.cat([scores, alike]), 0.05, 3)[-4:]
    alone = sinkhorn(alike, 0.05, 3)
    assert float((with_queue - truth).abs().max()) < 0.05
    assert float((alone - truth).abs().max()) > 0.5
