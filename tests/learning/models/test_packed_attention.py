"""Models that attend by where documents begin compute what they compute with the masks of transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dedloc_kit.learning.models.families import DECODERS, ENCODERS, Family
from dedloc_kit.learning.models.packed_attention import NAME, as_mask, document_bounds, document_masks, has_kernel
from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.flat_model import FlatModel
from tests.learning.models.test_families import FEW_HEADS, LAYERS, NAMED, SMALL, VOCABULARY, built

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = [20, 3, 25, 1, 40, 7]
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS]).view(2, 48)
WINDOW = {**FEW_HEADS, "sliding_window": 5}
PACKED = [case for case in NAMED if case[1] != "deberta-v2"] + [
    (DECODERS, "mistral", WINDOW),
    (DECODERS, "qwen2", {**WINDOW, **LAYERS, "use_sliding_window": True}),
    (DECODERS, "starcoder2", WINDOW),
    (DECODERS, "deepseek_v3", {**SMALL, "first_k_dense_replace": 2}),
    (ENCODERS, "electra", SMALL),
]


def ids() -> Tensor:
    return torch.randint(2, VOCABULARY, (2, 48), generator=torch.Generator().manual_seed(0))


def gradients(model: Any, hidden: Tensor) -> list[Tensor | None]:
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1))
    parameters = [parameter for parameter in model.base_model.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad((hidden * weights).sum() / hidden.numel(), parameters, allow_unused=True))


@pytest.mark.parametrize(("family", "architecture", "values"), PACKED, ids=[name for _, name, _ in PACKED])
def test_hidden_states_and_gradients_are_those_of_the_masks_of_transformers(
    family: Family, architecture: str, values: dict[str, Any]
) -> None:
    model, given = built(family, architecture, values), ids()
    config, bounds = model.base_model.config, document_bounds(POSITIONS)
    assert config._attn_implementation == NAME
    assert bounds.tolist() == [0, 20, 23, 48, 49, 89, 96]
    uncached = {"use_cache": False} if family.causal else {}

    def by(mask: Any) -> Tensor:
        hidden: Tensor = model.base_model(input_ids=given, position_ids=POSITIONS, attention_mask=mask, **uncached)[0]
        return hidden

    model.set_attn_implementation("sdpa")
    expected = family.hidden(model, given, POSITIONS, bounds)
    wanted = gradients(model, expected)
    model.set_attn_implementation(NAME)
    for found in (family.hidden(model, given, POSITIONS, bounds), by(as_mask(config, bounds))):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
        for one, other in zip(gradients(model, found), wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "architecture", "values", "attention"),
    [
        (DECODERS, "gemma2", WINDOW, "eager"),
        (ENCODERS, "deberta-v2", SMALL, "eager"),
    ],
)
def test_who_needs_more_than_a_mask_keeps_its_own_attention(
    family: Family, architecture: str, values: dict[str, Any], attention: str
) -> None:
    assert built(family, architecture, values).config._attn_implementation == attention


def test_a_model_with_windows_of_another_kind_keeps_the_masks_of_transformers() -> None:
    """Its layers would see one token more through the kernel than through a mask."""
    model = built(DECODERS, "qwen2", {**WINDOW, **LAYERS, "use_sliding_window": True})
    model.set_attn_implementation("sdpa")
    model.base_model.layers[0].self_attn.sliding_window += 1
    DECODERS.check(model)
    assert model.config._attn_implementation == "sdpa"
    model.base_model.layers[0].self_attn.sliding_window -= 1
    DECODERS.check(model)
    assert model.config._attn_implementation == NAME


def test_trying_a_model_leaves_its_windows_as_they_are() -> None:
    model = built(ENCODERS, "modernbert", {**SMALL, **LAYERS, "local_attention": 8})
    assert (model.config.sliding_window, model.config.local_attention) == (4, 8)
    windows = [module.sliding_window for module in model.modules() if hasattr(module, "sliding_window")]
    assert windows == [5, None]


def test_a_window_of_a_decoder_counts_the_token_itself_and_that_of_an_encoder_goes_both_ways() -> None:
    config = DECODERS.config("mistral", {**FEW_HEADS, "sliding_window": 3}, {"vocab_size": VOCABULARY})
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1]])
    causal = document_masks(config, positions, causal=True)[0, 0]
    assert causal[4].nonzero().flatten().tolist() == [2, 3, 4]
    assert causal[6].nonzero().flatten().tolist() == [5, 6]
    around = document_masks(config, positions, causal=False)[0, 0]
    assert around[1].nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
    assert around[5].nonzero().flatten().tolist() == [5, 6]


def test_blocks_that_are_computed_again_see_the_same_documents() -> None:
    model = built(DECODERS, "gemma3", {**WINDOW, **LAYERS}).train()
    bounds = as_mask(model.base_model.config, document_bounds(POSITIONS))

    def loss(model: Any, batch: dict[str, Tensor], step: int) -> Loss:
        at = batch["position_ids"]
        base = model.base_model
        by_bounds = base(input_ids=batch["input_ids"], position_ids=at, attention_mask=bounds, use_cache=False)[0]
        by_masks = DECODERS.hidden(model, batch["input_ids"], at)
        return Loss.of((by_bounds.square() + by_masks).mean(), len(at))

    card = Card(FlatModel(model, torch.device("cpu")), loss)
    batch = {"input_ids": ids(), "position_ids": POSITIONS}
    found = []
    for _ in range(2):
        card.measure(batch)
        found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        if card.checkpointing.possible:
            card.checkpointing.begin()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-7)


def test_a_text_by_itself_goes_on_as_with_the_attention_of_transformers(tmp_path: Path) -> None:
    model, given = built(DECODERS, "llama", FEW_HEADS), ids()[:, :9]
    padding = torch.ones_like(given)
    padding[0, :4] = 0

    def written() -> Tensor:
        made: Tensor = model.generate(input_ids=given, attention_mask=padding, max_new_tokens=6, do_sample=False)
        return made

    found, scores = written(), model(input_ids=given).logits
    model.save_pretrained(tmp_path)
    assert NAME not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    model.set_attn_implementation("sdpa")
    assert torch.equal(found, written())
    torch.testing.assert_close(scores, model(input_ids=given).logits, rtol=0, atol=1e-6)


def test_a_cpu_has_no_kernel() -> None:
    assert not has_kernel(torch.device("cpu"))
