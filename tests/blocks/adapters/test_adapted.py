"""Layers with an adapter give what the whole model with it gives, and so do their gradients."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers.pytorch_utils import Conv1D

from dedloc_kit.blocks.adapters import adapted
from dedloc_kit.blocks.adapters.adapters import Adapter, layer_of, linear_layers
from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.blocks.weights import quantized
from dedloc_kit.blocks.weights.quantized import Quantization, quantize
from tests.blocks import tiny

pytestmark = pytest.mark.usefixtures("one_thread")
BORDER, TOKENS, PROMPT, SCALING = 1, 9, 3, 0.5


def everything(model: Any) -> Adapter:
    """An adapter for all that a model has."""
    span, tensors = Span.of(model, 0, tiny.LAYERS), {}
    torch.manual_seed(1)
    for number in range(tiny.LAYERS):
        tensors[f"layers.{number}.prompt"] = torch.randn(PROMPT, 32)
        for path, (inputs, outputs) in linear_layers(layer_of(span, number)).items():
            tensors[f"layers.{number}.{path}.lora_A"] = torch.randn(2, inputs) * 0.2
            tensors[f"layers.{number}.{path}.lora_B"] = torch.randn(outputs, 2) * 0.2
    return Adapter.of(tensors, SCALING)


@contextmanager
def whole(model: Any, tensors: dict[str, torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """A whole model with an adapter; gets what its first layer is given and what its last gives."""
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    seen: list[torch.Tensor] = []

    def first(_: Any, args: Any, kwargs: Any) -> None:
        seen.append(args[0] if args else kwargs["hidden_states"])

    def last(_: Any, args: Any, output: Any) -> None:
        seen.append(output[0] if isinstance(output, tuple) else output)

    def prompt(values: torch.Tensor) -> Any:
        def add(_: Any, args: Any, kwargs: Any) -> Any:
            hidden = args[0] if args else kwargs.pop("hidden_states")
            added = hidden + torch.nn.functional.pad(values, (0, 0, 0, hidden.shape[1] - len(values)))
            return (added, *args[1:]), kwargs

        return add

    hooks = [layers[0].register_forward_pre_hook(first, with_kwargs=True), layers[-1].register_forward_hook(last)]
    for name, values in tensors.items():
        number, _, path = name.removeprefix("layers.").partition(".")
        if path == "prompt":
            hooks.append(layers[int(number)].register_forward_pre_hook(prompt(values), with_kwargs=True))
        elif path.endswith(".lora_A"):
            module, b = layers[int(number)].get_submodule(path.removesuffix(".lora_A")), tensors[name[:-1] + "B"]
            hooks.append(
                module.register_forward_hook(lambda _, x, y, a=values, b=b: y + SCALING * ((x[0] @ a.T) @ b.T))
            )
    yield seen
    for hook in hooks:
        hook.remove()


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens padded on the left in one row, their mask and their positions."""
    mask = torch.ones(2, TOKENS, dtype=torch.long)
    mask[1, :2] = 0
    ids = torch.randint(3, 97, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


def near(found: torch.Tensor, wanted: torch.Tensor, bound: float = 1e-6) -> bool:
    return bool((found - wanted).norm() <= bound * wanted.norm()) and found.shape == wanted.shape


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_result_and_gradients_are_those_of_the_whole_model(family: str) -> None:
    model, (ids, mask, positions) = tiny.model(family), inputs()
    adapter, embedding = everything(model), model.get_input_embeddings()
    tensors = {name: tensor.clone().requires_grad_() for name, tensor in adapter.tensors.items()}
    embedding.weight.requires_grad_()
    takes = {} if family in ("Bloom", "OPT") else {"position_ids": positions}
    with whole(model, tensors) as seen:
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False, **takes).logits
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    (first, last), wanted, found = seen, dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    wanted["first"], gradient, *rest = torch.autograd.grad(loss, [first, last, *tensors.values()])
    wanted |= zip(tensors, rest, strict=True)
    embedding.weight.requires_grad_(False)

    spans, given = [Span.of(model, 0, BORDER), Span.of(model, BORDER, tiny.LAYERS)], [first.detach()]
    parts = [adapter.part(span.begin, span.end) for span in spans]
    for span, part in zip(spans, parts, strict=True):
        assert part is not None
        part.form.check(span)
        given.append(adapted.forward(span, given[-1], mask, positions, None, part))
    assert near(given.pop(), last)
    for span, part in reversed([*zip(spans, parts, strict=True)]):
        gradient, of_part = adapted.backward(span, given.pop(), mask, positions, part, gradient)
        found |= of_part
    found["first"] = gradient
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        assert near(found[name], values), name
    assert all(parameter.grad is None for span in spans for parameter in span.parameters())


@pytest.mark.parametrize("family", ["Llama", "GPT2"])
def test_lora_is_the_same_as_other_weights(family: str) -> None:
    model, (_, mask, positions) = tiny.model(family), inputs()
    lora = {name: it for name, it in everything(model).tensors.items() if not name.endswith("prompt")}
    span, hidden = Span.of(model, 1, 3), torch.randn(2, TOKENS, 32)
    part = Adapter.of(lora, SCALING).part(1, 3)
    found = adapted.forward(span, hidden, mask, positions, None, part)
    assert part is not None
    for name in part.tensors:
        if name.endswith("lora_A"):
            _, number, path = name.removesuffix(".lora_A").split(".", 2)
            module = layer_of(span, int(number)).get_submodule(path)
            change = SCALING * lora[name[:-1] + "B"] @ lora[name]
            module.weight.data += change.T if isinstance(module, Conv1D) else change  # type: ignore[operator]
    assert near(found, span(hidden, mask, positions), 1e-5)


@pytest.mark.parametrize("family", ["Llama", "Mistral", "GPT2"])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_token_by_token_it_is_the_same_also_within_a_prompt(family: str, first: int) -> None:
    model, (_, mask, positions) = tiny.model(family), inputs()
    span, adapter, hidden = Span.of(model, 0, 2), everything(model).part(0, 2), torch.randn(2, TOKENS, 32)
    at_once = adapted.forward(span, hidden, mask, positions, None, adapter)
    session, parts = CachedSpan(span, partial(adapted.forward, span, adapter=adapter)), []
    for begin, end in [(0, first), *((i, i + 1) for i in range(first, TOKENS))]:
        parts.append(session(hidden[:, begin:end], mask[:, :end], positions[:, begin:end], Past(begin)))
    real = mask.bool()
    assert near(torch.cat(parts, 1)[real], at_once[real], 1e-5)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_it_works_on_weights_of_few_bits(kind: Quantization, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "kernel_works", lambda kind: False)  # it computes in bfloat16
    model, (_, mask, positions) = tiny.model("Llama"), inputs()
    adapter, hidden, gradient = everything(model).part(1, 3), torch.randn(2, TOKENS, 32), torch.randn(2, TOKENS, 32)
    span = Span.of(model, 1, 3)
    quantize(span, kind)
    assert adapter is not None
    plain = Span.of(model, 1, 3)  # with the weights that the few bits stand for
    for name, module in span.named_modules():
        if hasattr(module, "dequantized"):
            plain.get_submodule(name).weight = torch.nn.Parameter(module.dequantized(), requires_grad=False)
    found = adapted.backward(span, hidden, mask, positions, adapter, gradient)
    wanted = adapted.backward(plain, hidden, mask, positions, adapter, gradient)
    assert near(found[0], wanted[0], 1e-4)
    assert all(near(found[1][name], values, 1e-4) for name, values in wanted[1].items())


def test_nothing_of_it_stays_even_after_an_error() -> None:
    model, (_, mask, positions) = tiny.model("Llama"), inputs()
    span, adapter, hidden = Span.of(model, 1, 3), everything(model).part(1, 3), torch.randn(2, TOKENS, 32)
    before = span(hidden, mask, positions)
    assert not near(adapted.forward(span, hidden, mask, positions, None, adapter), before, 0.01)
    assert torch.equal(span(hidden, mask, positions), before)
    adapted.backward(span, hidden, mask, positions, adapter, hidden)
    with pytest.raises(RuntimeError):
        adapted.forward(span, hidden[..., :-1], mask, positions, None, adapter)
    assert torch.equal(span(hidden, mask, positions), before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in span.modules())


def test_calls_of_another_thread_meanwhile_see_nothing_of_it() -> None:
    model, (_, mask, positions) = tiny.model("Llama"), inputs()
    span, adapter, hidden = Span.of(model, 1, 3), everything(model).part(1, 3), torch.randn(2, TOKENS, 32)
    before, found, caller = span(hidden, mask, positions), [], threading.get_ident()

    def other_call(*_: Any) -> None:
        if threading.get_ident() == caller:
            thread = threading.Thread(target=lambda: found.append(span(hidden, mask, positions)))
            thread.start()
            thread.join(60)

    handle = layer_of(span, 1).register_forward_hook(other_call)
    adapted.forward(span, hidden, mask, positions, None, adapter)
    handle.remove()
    assert torch.equal(found[0], before)


def test_without_an_adapter_it_is_the_span_itself() -> None:
    model, (_, mask, positions) = tiny.model("Llama"), inputs()
    span, hidden = Span.of(model, 1, 3), torch.randn(2, TOKENS, 32).requires_grad_()
    plain = span(hidden, mask, positions)
    assert torch.equal(adapted.forward(span, hidden, mask, positions, None, None), plain)
    gradient, none = adapted.backward(span, hidden, mask, positions, None, hidden)
    assert torch.equal(gradient, torch.autograd.grad(plain, hidden, hidden)[0])
    assert not none
    assert hidden.grad is None
