"""A span's layers with an adapter for one call, and the gradients of that call. The span stays as it is."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dedloc_kit.blocks.adapters.adapters import Adapter, layer_of, parts
from dedloc_kit.blocks.span import Span


def forward(
    span: Span,
    hidden: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    cache: Any | None,
    adapter: Adapter | None,
) -> Tensor:
    """As `Span.forward`, with this adapter, which must fit the span."""
    if adapter is None:
        return span.forward(hidden, attention_mask, position_ids, cache)
    past = 0 if cache is None else cache.get_seq_length()
    with _applied(span, adapter.tensors, adapter.form.scaling, past):
        return span.forward(hidden, attention_mask, position_ids, cache)


def backward(
    span: Span,
    hidden: Tensor,
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    adapter: Adapter | None,
    gradient: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The gradients of the hidden states and of the adapter's tensors, from that of the result of `forward`.

    Everything is computed anew and nothing kept; there is no cache. The span's own weights get no gradients.
    """
    tensors = {} if adapter is None else {name: tensor.detach() for name, tensor in adapter.tensors.items()}
    inputs = [hidden.detach(), *tensors.values()]
    with torch.enable_grad():
        for tensor in inputs:
            tensor.requires_grad_()
        with _applied(span, tensors, adapter.form.scaling if adapter else 1.0, 0):
            after = span.forward(inputs[0], attention_mask, position_ids)
        found = torch.autograd.grad(after, inputs, gradient.to(after.dtype), materialize_grads=True)
    return found[0], dict(zip(tensors, found[1:], strict=True))


@contextmanager
def _applied(span: Span, tensors: Mapping[str, Tensor], scaling: float, past: int) -> Iterator[None]:
    """Within it this thread's calls of the span use the adapter, and nobody else's do.

    :param past: how many tokens came before those of the call
    """
    hooks = []
    caller = threading.get_ident()

    def add_lora(a: Tensor, b: Tensor) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if threading.get_ident() != caller:
                return output
            # As peft computes it, to the last bit.
            return (output + linear(linear(args[0].to(a.dtype), a), b) * scaling).to(output.dtype)

        return hook

    def add_prompt(prompt: Tensor) -> Any:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
            if threading.get_ident() != caller:
                return args, kwargs
            if args:
                return (_with_prompt(args[0], prompt), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": _with_prompt(kwargs["hidden_states"], prompt)}

        return hook

    try:
        for name, tensor in tensors.items():
            number, path, kind = parts(name)
            layer = layer_of(span, number)
            if path is None:
                if (rest := tensor[past:]).numel():
                    hooks.append(layer.register_forward_pre_hook(add_prompt(rest), with_kwargs=True))
            elif kind == "lora_A":
                other = tensors[name[:-1] + "B"]
                hooks.append(layer.get_submodule(path).register_forward_hook(add_lora(tensor, other)))
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _with_prompt(hidden: Tensor, prompt: Tensor) -> Tensor:
    """With the prompt added to the first tokens."""
    first, rest = hidden[:, : len(prompt)], hidden[:, len(prompt) :]
    return torch.cat([(first + prompt[: first.shape[1]]).to(hidden.dtype), rest], 1)
