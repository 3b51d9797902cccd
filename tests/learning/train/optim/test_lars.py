"""LARS against a double-precision reference written from the paper."""

import math

import pytest
import torch
from torch import Tensor

from dedloc_kit.config.optimizer import OptimizerConfig
from dedloc_kit.learning.train.optim.build import build_optimizer
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.optim.lars import Lars


def reference_lars(
    x: Tensor, gradients: list[Tensor], rates: list[float], momentum: float, decay: float, trust: float
) -> Tensor:
    """The update of arXiv 1708.03888 for one layer in float64, the global rate outside the momentum."""
    x = x.double()
    v = torch.zeros_like(x)
    for gradient, rate in zip(gradients, rates, strict=True):
        g = gradient.double()
        weight_norm, gradient_norm = math.sqrt(float((x * x).sum())), math.sqrt(float((g * g).sum()))
        defined = weight_norm > 0 and gradient_norm > 0
        local_rate = trust * weight_norm / (gradient_norm + decay * weight_norm) if defined else 1.0
        v = momentum * v + local_rate * (g + decay * x)
        x = x - rate * v
    return x


@pytest.mark.parametrize("shape", [(1,), (7, 5), (4096,), (130, 200)])
@pytest.mark.parametrize(("momentum", "decay", "trust"), [(0.9, 1e-6, 0.001), (0.5, 0.01, 0.02), (0.0, 0.0, 0.001)])
def test_twenty_updates_equal_the_paper(shape: tuple[int, ...], momentum: float, decay: float, trust: float) -> None:
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(shape, generator=generator)
    gradients = [torch.randn(shape, generator=generator) * 10.0 ** (i % 4 - 3) for i in range(20)]
    rates = [2.4 / (1 + number) for number in range(20)]

    param = torch.nn.Parameter(start.clone())
    optimizer = Lars([param], lr=0.0, momentum=momentum, weight_decay=decay, trust_coefficient=trust)
    for gradient, rate in zip(gradients, rates, strict=True):
        param.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    expected = reference_lars(start, gradients, rates, momentum, decay, trust)
    torch.testing.assert_close(param.detach().double(), expected, rtol=2e-5, atol=1e-6)


def test_a_step_does_not_depend_on_the_length_of_the_gradient() -> None:
    params = [torch.nn.Parameter(torch.ones(3, 4)) for _ in range(2)]
    gradient = torch.arange(12.0).view(3, 4)
    params[0].grad, params[1].grad = gradient, 1000 * gradient
    Lars(params, lr=1.0, weight_decay=0.0).step()
    torch.testing.assert_close(params[0], params[1])
    assert float((params[0].detach() - 1).norm()) == pytest.approx(0.001 * math.sqrt(12), rel=1e-3)


def test_weights_that_start_at_zero_learn_and_weights_without_gradient_stay() -> None:
    bias, still = torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.ones(3))
    bias.grad, still.grad = torch.ones(3), torch.zeros(3)
    Lars([bias, still], lr=0.5, weight_decay=0.0).step()
    assert bias.tolist() == [-0.5] * 3
    assert still.tolist() == [1.0] * 3


def test_a_peer_that_copies_parameters_and_state_tensors_goes_on_with_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(2)
    ours = [torch.nn.Parameter(torch.randn(50, 100, generator=generator)) for _ in range(2)]
    theirs = [torch.nn.Parameter(torch.zeros(50, 100)) for _ in range(2)]
    first, second = Lars(ours, lr=2.0), Lars(theirs, lr=2.0)

    def steps(count: int, *pairs: tuple[torch.nn.Parameter, ...]) -> None:
        for _ in range(count):
            for params in pairs:
                gradient = torch.randn(50, 100, generator=generator)
                for param in params:
                    param.grad = gradient.clone()
            first.step()
            second.step()

    steps(3, *((param,) for param in ours))
    with torch.no_grad():
        for target, source in zip([*theirs, *second.state_tensors()], [*ours, *first.state_tensors()], strict=True):
            target.copy_(source)
    steps(2, *zip(ours, theirs, strict=True))
    assert all(torch.equal(param, copied) for param, copied in zip(ours, theirs, strict=True))


def test_a_run_names_its_optimizer() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    groups = [{"params": [param], "weight_decay": 0.5}]
    lars = build_optimizer(OptimizerConfig(name="lars", momentum=0.5, trust_coefficient=0.2, warmup_steps=0), groups)
    assert isinstance(lars, Lars)
    group = lars.param_groups[0]
    assert (group["lr"], group["momentum"], group["trust_coefficient"]) == (1.76e-3, 0.5, 0.2)
    assert group["weight_decay"] == 0.5
    lamb = build_optimizer(OptimizerConfig(betas=(0.5, 0.6), epsilon=0.1, max_weight_norm=3.0), groups)
    assert isinstance(lamb, Lamb)
    group = lamb.param_groups[0]
    assert (group["betas"], group["eps"], group["max_weight_norm"]) == ((0.5, 0.6), 0.1, 3.0)
