"""Linear layers whose weights are int8 or int4, for computing on a CPU with frozen weights.

torch's own kernels for that are private functions: they are called here alone, and only after a small layer came out
right. They take inputs in bfloat16 (with float32 they are slower than no quantization), and a row's result does not
depend on the rows beside it. Without them the weights become float32 for the moment of the product.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from dedloc_kit.errors import UserError

Quantization = Literal["int8", "int4"]

GROUP = 32
"""Inputs that share a scale in int4. The kernels read beyond the end of rows that are no multiple of it."""
_SLAB = 64
"""Rows that the int4 kernel packs together; how, depends on the processor."""
_TINY = 1e-30


class QuantizedLinear(nn.Module):
    """A linear layer with frozen weights of few bits; gradients go to its inputs alone."""

    kind: Quantization
    values: Tensor
    scales: Tensor

    def __init__(self, shape: torch.Size, bias: Tensor | None, kernel: bool | None) -> None:
        """:param kernel: use torch's; by default if it works"""
        super().__init__()
        self.out_features, self.in_features = shape
        self.bias = bias
        self.by_kernel = kernel_works(self.kind) if kernel is None else kernel

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = _Product.apply(inputs, self)  # type: ignore[no-untyped-call]
        return outputs if self.bias is None else outputs + self.bias.to(outputs.dtype)

    def product(self, inputs: Tensor) -> Tensor:
        """Without the bias, and without a gradient."""
        rows = inputs.reshape(-1, self.in_features)
        if self.by_kernel and inputs.device.type == "cpu":
            outputs = self.kernel(rows.bfloat16())
        else:
            outputs = rows.float() @ self.dequantized().T
        return outputs.to(inputs.dtype).reshape(*inputs.shape[:-1], self.out_features)

    def kernel(self, rows: Tensor) -> Tensor:
        """The product by torch's kernel, in bfloat16."""
        raise NotImplementedError

    def dequantized(self) -> Tensor:
        """The weights in float32."""
        raise NotImplementedError


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return layer.product(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient.float() @ ctx.layer.dequantized()).to(gradient.dtype), None


class Int8Linear(QuantizedLinear):
    """A scale for each output."""

    kind = "int8"

    def __init__(self, weight: Tensor, bias: Tensor | None = None, kernel: bool | None = None) -> None:
        super().__init__(weight.shape, bias, kernel)
        weight = _finite(weight)
        scales = (weight.abs().amax(1) / 127).clamp(min=_TINY).bfloat16()
        values = (weight / scales.float()[:, None]).round_().clamp_(-127, 127)
        self.register_buffer("values", values.to(torch.int8).contiguous())
        self.register_buffer("scales", scales)

    def kernel(self, rows: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten._weight_int8pack_mm(rows, self.values, self.scales.bfloat16())
        return found

    def dequantized(self) -> Tensor:
        return self.values.float() * self.scales.float()[:, None]


class Int4Linear(QuantizedLinear):
    """A scale and a zero point for each output and group of inputs."""

    kind = "int4"

    def __init__(self, weight: Tensor, bias: Tensor | None = None, kernel: bool | None = None) -> None:
        super().__init__(weight.shape, bias, kernel)
        self.by_kernel = self.by_kernel and self.out_features % _SLAB == 0 and weight.device.type == "cpu"
        groups = _finite(weight).reshape(self.out_features, -1, GROUP)
        low, high = groups.amin(-1), groups.amax(-1)
        scale = ((high - low) / 15).clamp(min=_TINY).bfloat16()
        zero = (low + 8 * scale.float()).bfloat16()
        values = (groups - zero.float()[..., None]).div_(scale.float()[..., None]).add_(8).round_().clamp_(0, 15)
        pack = _pack_for_kernel if self.by_kernel else _pack
        self.register_buffer("values", pack(values.view(weight.shape).int()))
        self.register_buffer("scales", torch.stack([scale.T, zero.T], -1).contiguous())

    def kernel(self, rows: Tensor) -> Tensor:
        found: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.values, GROUP, self.scales.bfloat16())
        return found

    def dequantized(self) -> Tensor:
        values = _unpack(self.values)
        if self.by_kernel:
            order = _kernel_order(self.in_features).to(values.device)
            values = values.view(-1, len(order))[:, order]
        scale, zero = self.scales.float().permute(2, 1, 0)[..., None]
        found: Tensor = (values.view(*scale.shape[:2], GROUP).float() - 8) * scale + zero
        return found.view(self.out_features, -1)


KINDS: dict[Quantization, Callable[[Tensor, Tensor | None, bool | None], QuantizedLinear]] = {
    "int8": Int8Linear,
    "int4": Int4Linear,
}


def quantize(module: nn.Module, kind: Quantization) -> nn.Module:
    """Replace the linear layers within a module; those whose inputs are no multiple of 32 stay as they are.

    Raises UserError if weights are not finite.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if is_linear(child):
                setattr(parent, name, quantized(child, child.weight.detach(), kind))
    return module


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Can it be quantized?"""
    columns = {nn.Linear: 1, Conv1D: 0}  # GPT-2's own linear layers hold their weights transposed
    return any(isinstance(module, kind) and module.weight.shape[axis] % GROUP == 0 for kind, axis in columns.items())


def quantized(linear: nn.Linear, weight: Tensor, kind: Quantization) -> QuantizedLinear:
    """What takes the place of a linear layer with this weight."""
    return KINDS[kind](weight.T if isinstance(linear, Conv1D) else weight, linear.bias, None)


@lru_cache
def kernel_works(kind: Quantization) -> bool:
    """Has this torch the kernel, and does a small layer come out as its weights say?"""
    generator = torch.Generator().manual_seed(0)
    weight, rows = (
        torch.randn(2 * _SLAB, 2 * GROUP, generator=generator),
        torch.randn(3, 2 * GROUP, generator=generator),
    )
    try:
        layer = KINDS[kind](weight, None, True)
        wanted = rows.bfloat16().float() @ layer.dequantized().T
        return torch.allclose(layer.kernel(rows.bfloat16()).float(), wanted, rtol=0.01, atol=0.02)
    except (AttributeError, RuntimeError):  # such a function is not there, or it takes something else
        return False


def _pack(values: Tensor) -> Tensor:
    """Two of 0 to 15 in a byte."""
    return (values[:, ::2] | values[:, 1::2] << 4).to(torch.uint8)


def _unpack(packed: Tensor) -> Tensor:
    return torch.stack([packed & 15, packed >> 4], -1).view(len(packed), -1)


def _pack_for_kernel(values: Tensor) -> Tensor:
    packed: Tensor = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
    return packed


@lru_cache(maxsize=16)
def _kernel_order(columns: int) -> Tensor:
    """Where the kernel's packing puts each value of a slab: found by packing the values' numbers, digit by digit."""
    places = torch.arange(_SLAB * columns, dtype=torch.int32)
    found = torch.zeros_like(places)
    for shift in range(0, len(places).bit_length(), 4):
        digit = (places >> shift & 15).view(_SLAB, columns)
        found |= _unpack(_pack_for_kernel(digit)).view(-1).int() << shift
    return found.argsort()


def _finite(weight: Tensor) -> Tensor:
    weight = weight.float()
    if not weight.isfinite().all():
        raise UserError("weights that are not finite cannot be quantized; take float32 or bfloat16")
    return weight
