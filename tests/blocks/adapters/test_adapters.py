"""What an adapter may be: everything about it is checked before it is used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.adapters import adapters
from dedloc_kit.blocks.adapters.adapters import Adapter, AdapterForm
from dedloc_kit.blocks.span import Span
from dedloc_kit.blocks.weights.quantized import quantize
from tests.blocks import tiny

LORA = "layers.1.self_attn.q_proj.lora_"


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        f"{LORA}A": torch.randn(4, 32),
        f"{LORA}B": torch.randn(32, 4),
        "layers.2.mlp.down_proj.lora_A": torch.randn(2, 64).bfloat16(),
        "layers.2.mlp.down_proj.lora_B": torch.randn(32, 2).half(),
        "layers.2.prompt": torch.randn(3, 32),
    }


def described(**changed: Any) -> dict[str, Any]:
    """A form as plain values, with other shapes for tensors of layer 1."""
    values = Adapter.of(tensors(), 0.5).form.model_dump()
    for name, shape in changed.items():
        values["tensors"][f"{LORA}{name}"]["shape"] = shape
    return values


def test_it_is_the_same_after_it_was_sent() -> None:
    adapter = Adapter.of(tensors(), 0.5)
    form = AdapterForm.parse({"scaling": 0.5, "tensors": dict(reversed(adapter.form.model_dump()["tensors"].items()))})
    received = Adapter.unpack(form, adapter.pack(), adapter.digest)
    assert received.digest == adapter.digest
    for name, tensor in tensors().items():
        assert received.tensors[name].dtype == tensor.dtype
        assert torch.equal(received.tensors[name], tensor)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values[f"{LORA}A"].view(-1)[3:4].add_(1e-3),
        lambda values: values.update({"layers.2.prompt": values["layers.2.prompt"].half()}),
        lambda values: values.update({"layers.3.prompt": values.pop("layers.2.prompt")}),
        lambda values: values.update({"layers.2.prompt": torch.cat([values["layers.2.prompt"], torch.zeros(1, 32)])}),
    ],
)
def test_its_digest_stands_for_names_types_shapes_and_values(change: Callable[[Any], None]) -> None:
    values = tensors()
    change(values)
    assert Adapter.of(values).digest not in {Adapter.of(tensors()).digest, Adapter.of(tensors(), 0.5).digest}
    assert Adapter.of(tensors()).digest != Adapter.of(tensors(), 0.5).digest


def test_a_later_change_of_the_users_tensors_does_not_change_it() -> None:
    values = tensors()
    adapter = Adapter.of(values)
    values["layers.2.prompt"].zero_()
    assert torch.equal(adapter.tensors["layers.2.prompt"], tensors()["layers.2.prompt"])


def test_a_part_is_what_some_layers_need() -> None:
    adapter = Adapter.of(tensors(), 0.5)
    part = adapter.part(2, 4)
    assert part is not None
    assert sorted(part.tensors) == sorted(name for name in tensors() if name.startswith("layers.2"))
    assert part.digest == Adapter.of({name: tensors()[name] for name in part.tensors}, 0.5).digest
    assert adapter.part(0, 1) is None


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, (4, 32)) for name in ("layers.1.self_attn.q_proj.weight", "layers.01.prompt", "layers.1.a/b.lora_A")),
        *((name, (4, 32)) for name in ("lm_head.lora_A", "layers.1.prompt.", "layers.٢.prompt", "layers.1..lora_A")),
        ("layers.1." + "a." * 80 + "lora_A", (4, 32)),
        ("layers.1.prompt", (0, 32)),
        ("layers.1.prompt", (32,)),
        ("layers.1.prompt", (3, 32, 1)),
        ("layers.1.prompt", (3, 2**20 + 1)),
    ],
)
def test_a_tensor_that_is_none_of_an_adapter_is_refused_by_its_name(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="AdapterForm: tensors"):
        AdapterForm.parse({"tensors": {name: {"dtype": "float32", "shape": shape}}})


@pytest.mark.parametrize("dtype", ["float64", "int8", "object"])
def test_a_type_that_is_not_computed_with_is_refused(dtype: str) -> None:
    with pytest.raises(ValueError, match="'float32', 'bfloat16' or 'float16'"):
        AdapterForm.parse({"tensors": {"layers.1.prompt": {"dtype": dtype, "shape": (3, 32)}}})


def test_an_absurd_rank_is_refused() -> None:
    with pytest.raises(ValueError, match=rf"{LORA}A has rank 513, more than 512$"):
        AdapterForm.parse(described(A=(513, 32), B=(32, 513)))


def test_halves_of_different_rank_or_alone_are_refused() -> None:
    with pytest.raises(ValueError, match=rf"{LORA}A has rank 4, {LORA}B has another$"):
        AdapterForm.parse(described(B=(32, 5)))
    for half, other in ("AB", "BA"):
        alone = described()
        del alone["tensors"][f"{LORA}{other}"]
        with pytest.raises(ValueError, match=rf"{LORA}{half} comes without {LORA}{other}$"):
            AdapterForm.parse(alone)


def test_too_long_a_prompt_too_many_tensors_and_too_many_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = {"dtype": "float32", "shape": (3, 32)}
    with pytest.raises(ValueError, match=r"layers.1.prompt has 1025 tokens, more than 1024$"):
        AdapterForm.parse({"tensors": {"layers.1.prompt": {**prompt, "shape": (1025, 32)}}})
    with pytest.raises(ValueError, match="at most 4096"):
        AdapterForm.parse({"tensors": {f"layers.{n}.prompt": prompt for n in range(4097)}})
    monkeypatch.setattr(adapters, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"an adapter of 1152 bytes is larger than 1000$"):
        AdapterForm.parse({"tensors": {f"layers.{n}.prompt": prompt for n in range(3)}})


@pytest.mark.parametrize("scaling", [0.0, -1.0, 1e5, float("nan"), float("inf")])
def test_an_absurd_scaling_is_refused(scaling: float) -> None:
    with pytest.raises(ValueError, match="AdapterForm: scaling"):
        AdapterForm.parse({**described(), "scaling": scaling})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    values, adapter = tensors(), Adapter.of(tensors())
    values["layers.2.prompt"][1, 2] = value
    with pytest.raises(ValueError, match=r"^layers.2.prompt holds numbers that are not finite$"):
        Adapter.of(values)
    hostile = Adapter(adapter.form, values)
    with pytest.raises(ValueError, match=r"^layers.2.prompt holds numbers that are not finite$"):
        Adapter.unpack(hostile.form, hostile.pack(), hostile.digest)


def test_other_bytes_than_its_hash_says_are_refused() -> None:
    adapter = Adapter.of(tensors())
    content = bytearray(adapter.pack())
    content[5] ^= 1
    with pytest.raises(ValueError, match=r"^the adapter's hash is another$"):
        Adapter.unpack(adapter.form, bytes(content), adapter.digest)
    for other in (content[:-1], content + b"\0"):
        with pytest.raises(ValueError, match=rf"^an adapter of {len(other)} bytes, not of {len(content)}$"):
            Adapter.unpack(adapter.form, bytes(other), adapter.digest)


@pytest.mark.parametrize(
    ("tensor", "shape", "why"),
    [
        ("layers.0.prompt", (3, 32), r"layers.0.prompt is for none of the layers 1:3"),
        ("layers.3.prompt", (3, 32), r"layers.3.prompt is for none of the layers 1:3"),
        ("layers.1.prompt", (3, 33), r"layers.1.prompt has the shape \(3, 33\), this model wants \(3, 32\)"),
        ("layers.1.mlp.up_proj.lora_", (4, 33, 64), r"up_proj.lora_A has the shape \(4, 33\), .* \(4, 32\)"),
        ("layers.1.mlp.up_proj.lora_", (4, 32, 65), r"up_proj.lora_B has the shape \(65, 4\), .* \(64, 4\)"),
        ("layers.1.mlp.lora_", (4, 32, 32), r"layers.1.mlp.lora_A: layer 1 has no linear layer mlp$"),
        ("layers.1.input_layernorm.lora_", (4, 32, 32), "layer 1 has no linear layer input_layernorm$"),
        ("layers.1.mlp.forward.lora_", (4, 32, 32), "layer 1 has no linear layer mlp.forward$"),
    ],
)
def test_what_does_not_fit_a_span_is_refused(tensor: str, shape: tuple[int, ...], why: str) -> None:
    rank, size, *outputs = shape
    shapes = {tensor: (rank, size)} if not outputs else {f"{tensor}A": (rank, size), f"{tensor}B": (outputs[0], rank)}
    form = AdapterForm.parse({"tensors": {name: {"dtype": "float32", "shape": it} for name, it in shapes.items()}})
    with pytest.raises(ValueError, match=why):
        form.check(Span(tiny.config("Llama"), 1, 3))


def test_what_fits_a_span_fits_it_whatever_its_weights_are() -> None:
    form = Adapter.of(tensors()).form
    span = Span.of(tiny.model("Llama"), 1, 3)
    form.check(span)
    quantize(span, "int8")
    form.check(span)
