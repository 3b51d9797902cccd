"""Half precision and checkpointed blocks change how gradients are computed, not what they are."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.computing.compute import Compute
from dedloc_kit.learning.train.flat import FlatLayout
from dedloc_kit.learning.train.gradients.gradients import Gradients

CPU = torch.device("cpu")


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def model() -> Blocks:
    torch.manual_seed(0)
    return Blocks()


def batch(size: int = 4, factor: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(size, 8, generator=generator), "factor": torch.full((size,), factor)}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    torch.manual_seed(2)  # the same dropout each time
    return functional.mse_loss(model(batch["x"]).float(), batch["x"].roll(1, 1)) * batch["factor"][0]


def gradients_of(compute: Compute) -> list[Tensor]:
    return [p.grad.clone() for p in compute.model.parameters() if p.grad is not None]


def test_float16_gives_the_gradients_of_float32() -> None:
    exact, half = (Compute(model(), loss, CPU, dtype) for dtype in (None, torch.float16))
    assert exact.gradients(batch()) == pytest.approx(half.gradients(batch()), rel=1e-2)
    for ours, theirs in zip(gradients_of(half), gradients_of(exact), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-4)


def test_small_gradients_survive_float16_because_the_loss_is_scaled() -> None:
    exact, half = (Compute(model(), loss, CPU, dtype) for dtype in (None, torch.float16))
    tiny = batch(factor=2e-6)
    exact.gradients(tiny)
    half.gradients(tiny)
    for ours, theirs in zip(gradients_of(half), gradients_of(exact), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=1e-9)


def test_a_scale_that_is_too_large_costs_its_microbatches_and_the_accumulated_gradients_stay_exact() -> None:
    exact, half = (Compute(model(), loss, CPU, dtype) for dtype in (None, torch.float16))
    parameters = list(half.model.parameters())
    layout = FlatLayout.of(parameters)
    accumulated = Gradients([parameters], layout)
    taken = []
    for size in (2, 4, 2, 6, 2, 4, 2, 6, 4, 2):
        value = half.gradients(batch(size, factor=200.0))
        assert value is not None
        taken.append(size if accumulated.add(value, size, step=0) else 0)
        assert half.rescaled == (taken[-1] == 0), "what was left out is no fault"
    assert taken[0] == 0, "the first scale overflows"
    assert taken[-3:] == [6, 4, 2], "a smaller one does not"
    flat = torch.zeros(layout.size)
    accumulated.load_outgoing(flat)
    means = [torch.zeros_like(p) for p in parameters]
    for size in filter(None, taken):
        exact.gradients(batch(size, factor=200.0))
        for mean, gradient in zip(means, gradients_of(exact), strict=True):
            mean += gradient * size / sum(taken)
    for ours, theirs in zip(layout.views(flat), means, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=0.05)


def test_gradients_that_overflow_at_every_scale_are_a_fault_and_the_scale_recovers() -> None:
    half = Compute(model(), loss, CPU, torch.float16)
    for _ in range(40):
        half.gradients(batch(factor=math.inf))
    assert not half.rescaled
    exact = Compute(model(), loss, CPU, None)
    assert half.gradients(batch()) == pytest.approx(exact.gradients(batch()), rel=1e-2)
    for ours, theirs in zip(gradients_of(half), gradients_of(exact), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-4)


def test_a_batch_that_does_not_fit_leaves_no_gradients() -> None:
    def runs_out(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        (loss(model, batch)).backward()  # some gradients are there by then
        raise torch.OutOfMemoryError

    compute = Compute(model(), runs_out, CPU, None)
    assert compute.gradients(batch()) is None
    assert gradients_of(compute) == []


def test_checkpointed_blocks_have_the_same_gradients_and_keep_less() -> None:
    def kept(compute: Compute) -> int:
        """The numbers that are kept for the backward pass, the parameters left out."""
        found: dict[int, int] = {}
        parameters = {p.data_ptr() for p in compute.model.parameters()}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in parameters:
                found[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = loss(compute.model, batch(64))
        size = sum(found.values())
        value.backward()
        return size

    plain, saving = Compute(model(), loss, CPU, None), Compute(model(), loss, CPU, None)
    saving.save_memory()
    assert kept(saving) < kept(plain)
    for ours, theirs in zip(gradients_of(saving), gradients_of(plain), strict=True):
        assert torch.equal(ours, theirs), "dropout included"
    with pytest.raises(UserError, match="choose the device 'cpu'"):
        saving.save_memory()
    saving.save_time()
    assert kept(saving) == kept(plain)


def test_a_model_without_blocks_cannot_be_checkpointed() -> None:
    assert not Compute(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), loss, CPU, None).can_save_memory
