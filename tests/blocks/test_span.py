"""Spans of a model, one after the other, are the whole model."""

from typing import Any

import pytest
import torch
import transformers

from dedloc_kit.blocks.past import Past
from dedloc_kit.blocks.span import CachedSpan, Span
from dedloc_kit.errors import UserError
from tests.blocks import tiny

BORDER = 1  # not in the middle, and where kinds of layers alternate the second span begins with the other kind
FAMILIES = pytest.mark.parametrize("family", tiny.FAMILIES)


def ids(batch: int = 2, tokens: int = 11) -> torch.Tensor:
    return torch.randint(3, 97, (batch, tokens), generator=torch.Generator().manual_seed(1))


def hidden_states(model: Any, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the whole model: what its first layer gets, and what its last layer gives."""
    base = model.base_model
    body = getattr(base, "decoder", base)
    layers = body.layers if hasattr(body, "layers") else body.h
    seen: list[torch.Tensor] = []
    hooks = [
        layers[0].register_forward_pre_hook(
            lambda _, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        ),
        layers[-1].register_forward_hook(lambda _, args, out: seen.append(out[0] if isinstance(out, tuple) else out)),
    ]
    base(**given, use_cache=False)
    for hook in hooks:
        hook.remove()
    first, last = seen
    return first, last


@FAMILIES
def test_two_spans_are_the_whole_model_at_once_and_token_by_token(family: str) -> None:
    model, mask = tiny.model(family), torch.ones(2, 11, dtype=torch.long)
    first, last = hidden_states(model, {"input_ids": ids(), "attention_mask": mask})
    spans = Span.of(model, 0, BORDER), Span.of(model, BORDER, tiny.LAYERS)

    hidden = first
    for span in spans:
        hidden = span(hidden, mask, torch.arange(11)[None])
    assert not torch.equal(first, last)
    assert torch.equal(hidden, last)

    caches, parts = [span.new_cache() for span in spans], []
    for begin, end in [(0, 4), *((i, i + 1) for i in range(4, 11))]:
        hidden = first[:, begin:end]
        for span, cache in zip(spans, caches, strict=True):
            hidden = span(hidden, mask[:, :end], torch.arange(begin, end)[None], cache)
        parts.append(hidden)
    assert (torch.cat(parts, 1) - last).abs().max() <= 1e-5 * last.abs().max().clamp(min=1)


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 2), (3, 2), (2, 5)])
def test_a_span_that_the_model_does_not_have_is_refused(begin: int, end: int) -> None:
    with pytest.raises(UserError, match=f"^no span {begin}:{end} in a model with 4 layers$"):
        Span(tiny.config("Llama"), begin, end)


def test_a_model_that_does_more_than_to_run_layers_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be divided"):
        Span(transformers.BertConfig(is_decoder=True, num_hidden_layers=2, hidden_size=12, intermediate_size=8), 0, 1)


def test_a_model_of_pictures_and_text_is_refused() -> None:
    with pytest.raises(UserError, match="gemma3 is more than a decoder of text"):
        Span(transformers.Gemma3Config(), 0, 1)


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_of_a_checkpoint_it_wants_its_own_tensors_alone(prefix: str) -> None:
    model = tiny.model("GPT2")
    names = [prefix + name.removeprefix("transformer.") for name in model.state_dict()]
    span = Span(model.config, 1, 3)
    wanted = span.wanted([*names, f"{prefix}h.1.attn.bias", f"{prefix}h.٢.ln_1.weight"])
    assert {name.split(".h.")[-1].removeprefix("h.")[:2] for name in wanted} == {"1.", "2."}
    assert wanted[f"{prefix}h.1.ln_1.weight"] == "base.h.0.ln_1.weight"
    assert sorted(wanted.values()) == sorted(span.state_dict())
    with pytest.raises(UserError, match=r"lacks 1 tensors of layers 1:3: base.h.1.mlp.c_proj.bias"):
        span.wanted(name for name in names if "2.mlp.c_proj.bias" not in name)


def test_before_it_has_its_tensors_it_takes_no_memory() -> None:
    assert all(values.is_meta for values in Span(tiny.config("Llama"), 0, 2).parameters())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_part_of_a_span_computes_as_the_whole_model_does_with_the_same_tensors(family: str) -> None:
    whole = tiny.model(family)
    span = Span.of(whole, 1, 4)
    hidden, positions = torch.randn(2, 9, 32), torch.arange(9).expand(2, 9)
    expected = span.forward(hidden, torch.ones(2, 9), positions)
    parts = [span.part(1, 2), span.part(2, 4)]
    assert {p.data_ptr() for part in parts for p in part.parameters()} == {p.data_ptr() for p in span.parameters()}
    remembering = [CachedSpan(part) for part in parts]
    for at in range(0, 9, 3):
        given = hidden[:, at : at + 3]
        for each in remembering:
            given = each(given, torch.ones(2, at + 3), positions[:, at : at + 3], Past(at))
        assert torch.allclose(given, expected[:, at : at + 3], atol=1e-5)
    assert torch.equal(span.forward(hidden, torch.ones(2, 9), positions), expected)


def test_a_span_has_no_part_outside_of_it() -> None:
    with pytest.raises(ValueError, match="no layers 0:2 in a span 1:4"):
        Span.of(tiny.model("Llama"), 1, 4).part(0, 2)
