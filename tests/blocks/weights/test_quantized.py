"""Linear layers of few bits."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from dedloc_kit.blocks.weights import quantized
from dedloc_kit.blocks.weights.quantized import KINDS, Quantization, QuantizedLinear, kernel_works, quantize
from dedloc_kit.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")
BOTH = pytest.mark.parametrize("kind", ["int8", "int4"])
ERROR: dict[Quantization, float] = {"int8": 0.015, "int4": 0.1}


def weight(outputs: int, inputs: int) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))


@BOTH
@pytest.mark.parametrize("shape", [(64, 32), (192, 576), (80, 96), (3, 32)])
def test_the_kernel_and_the_fallback_are_equal(kind: Quantization, shape: tuple[int, int]) -> None:
    kernel, fallback = (KINDS[kind](weight(*shape), None, way) for way in (None, False))
    inputs = torch.randn(2, 3, shape[1])
    assert torch.equal(kernel.dequantized(), fallback.dequantized())
    assert (kernel(inputs) - fallback(inputs)).norm() < 0.005 * fallback(inputs).norm()
    assert torch.allclose(fallback(inputs), inputs @ fallback.dequantized().T, atol=1e-4)


@BOTH
def test_this_torch_has_the_kernel(kind: Quantization) -> None:
    assert kernel_works(kind)
    assert KINDS[kind](weight(64, 32), None, None).by_kernel


@BOTH
def test_a_kernel_that_is_missing_or_computes_something_else_is_not_used(
    kind: Quantization, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("'_OpNamespace' 'aten' object has no such attribute")

    for other in (missing, lambda self, rows: torch.zeros(len(rows), self.out_features)):
        monkeypatch.setattr(type(KINDS[kind](weight(64, 32), None, False)), "kernel", other)
        assert not kernel_works.__wrapped__(kind)


@BOTH
def test_quantization_costs_little(kind: Quantization) -> None:
    found = KINDS[kind](weight(256, 512), None, None).dequantized()
    assert (found - weight(256, 512)).norm() < ERROR[kind] * weight(256, 512).norm()


@BOTH
def test_a_row_does_not_depend_on_the_rows_beside_it(kind: Quantization) -> None:
    layer, inputs = KINDS[kind](weight(128, 64), None, None), torch.randn(7, 64)
    assert torch.equal(layer(inputs), torch.cat([layer(row[None]) for row in inputs]))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_go_to_the_inputs(kind: Quantization, dtype: torch.dtype) -> None:
    layer = KINDS[kind](weight(64, 32), nn.Parameter(torch.randn(64)), None)
    inputs = torch.randn(2, 5, 32, dtype=dtype, requires_grad=True)
    outputs = layer(inputs)
    assert outputs.dtype == dtype
    outputs.backward(gradient := torch.randn(2, 5, 64).to(dtype))
    assert inputs.grad is not None
    assert torch.allclose(inputs.grad, (gradient.float() @ layer.dequantized()).to(dtype))


@BOTH
def test_all_linear_layers_of_a_module_are_replaced_but_those_of_odd_sizes(kind: Quantization) -> None:
    transposed, odd = Conv1D(64, 32), nn.Linear(33, 4)
    module = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Sequential(transposed, nn.Linear(64, 33)), odd)
    inputs = torch.randn(6, 32)
    before, transposed_before = module(inputs), transposed(inputs)
    assert quantize(module, kind) is module
    found = [part for part in module.modules() if isinstance(part, QuantizedLinear)]
    assert [(part.in_features, part.out_features) for part in found] == [(32, 32), (32, 64), (64, 33)]
    assert module[-1] is odd
    assert (found[1](inputs) - transposed_before).norm() < 0.15 * transposed_before.norm()
    assert (module(inputs) - before).norm() < 3 * ERROR[kind] * before.norm()


@BOTH
def test_a_module_may_change_its_type_afterwards(kind: Quantization) -> None:
    layer, inputs = KINDS[kind](weight(64, 32), None, None), torch.randn(2, 32)
    before = layer(inputs)
    assert torch.equal(layer.float()(inputs), before)


@BOTH
def test_rows_of_zeros_stay_zero_and_what_is_not_finite_is_refused(kind: Quantization) -> None:
    assert not KINDS[kind](torch.zeros(64, 32), None, None)(torch.randn(2, 32)).any()
    with pytest.raises(UserError, match="not finite"):
        KINDS[kind](torch.full((64, 32), torch.inf), None, None)


def test_a_result_for_no_rows_has_no_rows() -> None:
    assert quantized.Int8Linear(weight(64, 32))(torch.zeros(1, 0, 32)).shape == (1, 0, 64)
