"""LAMB against a double-precision reference written from the paper."""

import copy
import math

import pytest
import torch
from torch import Tensor

from dedloc_kit.learning.train.optim.lamb import Lamb


def reference_lamb(
    x: Tensor,
    gradients: list[Tensor],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    max_weight_norm: float,
) -> Tensor:
    """Algorithm 2 of arXiv 1904.00962 for one layer, line by line, in float64."""
    x = x.double()
    m = torch.zeros_like(x)
    v = torch.zeros_like(x)
    for t, gradient in enumerate(gradients, start=1):
        g = gradient.double()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        m_hat = m / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        r = m_hat / (v_hat.sqrt() + eps)
        update = r + weight_decay * x
        weight_norm = math.sqrt(float((x * x).sum()))
        update_norm = math.sqrt(float((update * update).sum()))
        ratio = min(weight_norm, max_weight_norm) / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
        x = x - lr * ratio * update
    return x


def test_parameters_that_share_room_for_their_updates_go_where_each_would_go_alone() -> None:
    generator = torch.Generator().manual_seed(6)
    start = [torch.randn(size, generator=generator) for size in (5, 2, 2, 4, 1, 5)]

    def trained(params: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        optimizer = Lamb(params, 0.1)
        for _ in range(3):
            for param in params:
                param.grad = param.detach() ** 2
            optimizer.step()
        return params

    together = trained([torch.nn.Parameter(values.clone()) for values in start])
    alone = [trained([torch.nn.Parameter(values.clone())])[0] for values in start]
    assert all(map(torch.equal, together, alone))


@pytest.mark.parametrize("shape", [(1,), (7, 5), (4096,), (130, 200)])
@pytest.mark.parametrize(("betas", "weight_decay"), [((0.9, 0.999), 0.01), ((0.8, 0.9), 0.0)])
@pytest.mark.parametrize("max_weight_norm", [10_000.0, 0.5])
def test_twenty_updates_equal_the_paper(
    shape: tuple[int, ...], betas: tuple[float, float], weight_decay: float, max_weight_norm: float
) -> None:
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(shape, generator=generator)
    gradients = [torch.randn(shape, generator=generator) * 10.0 ** (i % 4 - 3) for i in range(20)]
    expected = reference_lamb(start, gradients, 0.01, *betas, 1e-6, weight_decay, max_weight_norm)

    param = torch.nn.Parameter(start.clone())
    optimizer = Lamb([param], 0.01, betas, 1e-6, weight_decay, max_weight_norm)
    for gradient in gradients:
        param.grad = gradient.clone()
        optimizer.step()

    torch.testing.assert_close(param.detach().double(), expected, rtol=2e-5, atol=1e-6)


def test_the_ratio_is_one_where_the_weights_are_zero() -> None:
    param = torch.nn.Parameter(torch.zeros(3))
    optimizer = Lamb([param], lr=0.5, weight_decay=0.0, eps=1e-12)
    param.grad = torch.tensor([2.0, -3.0, 4.0])
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.tensor([-0.5, 0.5, -0.5]))


def test_nothing_moves_where_the_update_is_zero() -> None:
    param = torch.nn.Parameter(torch.ones(3))
    optimizer = Lamb([param], lr=0.5, weight_decay=0.0)
    param.grad = torch.zeros(3)
    optimizer.step()
    assert param.tolist() == [1.0, 1.0, 1.0]


def test_each_group_has_its_own_weight_decay_and_rate() -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.nn.Parameter(torch.randn(6, generator=generator)) for _ in range(2))
    gradients = [torch.randn(6, generator=generator) for _ in range(2)]
    expected = [
        reference_lamb(param.detach(), [gradient], lr, 0.9, 0.999, 1e-6, decay, 10_000.0)
        for param, gradient, lr, decay in zip([first, second], gradients, [0.1, 0.2], [0.5, 0.0], strict=True)
    ]
    optimizer = Lamb([{"params": [first], "weight_decay": 0.5}, {"params": [second], "weight_decay": 0.0}], lr=0.1)
    optimizer.param_groups[1]["lr"] = 0.2
    first.grad, second.grad = gradients
    optimizer.step()
    torch.testing.assert_close([first.detach().double(), second.detach().double()], expected, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_gradient_keeps_its_value_and_its_step() -> None:
    trained, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = Lamb([trained, frozen], lr=0.1)
    trained.grad = torch.ones(2)
    optimizer.step()
    assert frozen.tolist() == [1.0, 1.0]
    assert [float(optimizer.state[param]["step"]) for param in (trained, frozen)] == [1.0, 0.0]


def test_a_peer_that_copies_parameters_and_state_tensors_goes_on_with_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(2)
    ours = [torch.nn.Parameter(torch.randn(50, 100, generator=generator)) for _ in range(2)]
    optimizer = Lamb(ours, lr=0.1)
    for _ in range(3):
        for param in ours:
            param.grad = torch.randn(param.shape, generator=generator)
        optimizer.step()

    theirs = [torch.nn.Parameter(torch.zeros(50, 100)) for _ in range(2)]
    newcomer = Lamb(theirs, lr=0.1)
    with torch.no_grad():
        for target, source in zip(
            [*theirs, *newcomer.state_tensors()], [*ours, *optimizer.state_tensors()], strict=True
        ):
            target.copy_(source)
    for param, copied in zip(ours, theirs, strict=True):
        param.grad = torch.randn(param.shape, generator=generator)
        copied.grad = param.grad.clone()
    optimizer.step()
    newcomer.step()
    assert all(torch.equal(param, copied) for param, copied in zip(ours, theirs, strict=True))


def test_a_deep_copy_goes_on_with_the_same_bits() -> None:
    parameter = torch.nn.Parameter(torch.randn(64, generator=torch.Generator().manual_seed(0)))
    optimizer = Lamb([parameter], lr=0.1)
    other, copied = copy.deepcopy((parameter, optimizer))
    for its, updated in ((parameter, optimizer), (other, copied)):
        its.grad = torch.ones(64)
        updated.step()
    assert torch.equal(parameter, other)


def test_a_state_dict_round_trip_goes_on_with_the_same_bits() -> None:
    param = torch.nn.Parameter(torch.ones(5))
    optimizer = Lamb([param], lr=0.1)
    param.grad = torch.arange(5.0)
    optimizer.step()
    copied = torch.nn.Parameter(param.detach().clone())
    restored = Lamb([copied], lr=0.1)
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    param.grad = torch.arange(5.0).flip(0)
    copied.grad = param.grad.clone()
    optimizer.step()
    restored.step()
    assert torch.equal(param, copied)


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    def trained(threads: int) -> Tensor:
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(3)
        param = torch.nn.Parameter(torch.randn(1000, 333, generator=generator))
        optimizer = Lamb([param], lr=0.1)
        for _ in range(5):
            param.grad = torch.randn(param.shape, generator=generator)
            optimizer.step()
        return param.detach()

    before = torch.get_num_threads()
    try:
        assert torch.equal(trained(1), trained(3))
    finally:
        torch.set_num_threads(before)


def test_the_norm_is_exact_for_millions_of_elements() -> None:
    # With the update r = 1 everywhere the new weights tell the norm of the old ones.
    values = torch.full((3_000_001,), 0.01)
    param = torch.nn.Parameter(values.clone())
    optimizer = Lamb([param], lr=1.0, weight_decay=0.0, eps=1e-12)
    param.grad = torch.ones_like(values)
    optimizer.step()
    torch.testing.assert_close(param.detach(), torch.zeros_like(values), rtol=0, atol=1e-7)


def test_half_precision_parameters_keep_float32_state() -> None:
    param = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    optimizer = Lamb([param], lr=0.25, weight_decay=0.0)
    param.grad = torch.full((4,), 3.0, dtype=torch.bfloat16)
    optimizer.step()
    assert {tensor.dtype for tensor in optimizer.state_tensors()} == {torch.float32}
    assert param.tolist() == [0.75] * 4
