"""What the transformer knows of, and how large it is."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn import functional

from dedloc_kit.learning.task import Loss
from dedloc_kit.learning.tasks.drawing.places import KINDS
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer, Shape
from dedloc_kit.learning.train.computing.card import Card
from dedloc_kit.learning.train.flat_model import FlatModel

TINY = Shape(
    tokens=11,
    codes=7,
    caption=4,
    side=3,
    width=24,
    heads=2,
    shared=2,
    attention=("row", "column", "full", "convolution"),
    kernel=3,
    tied=True,
)
DEMONSTRATION = Shape(
    tokens=32_100,
    codes=8192,
    caption=256,
    side=32,
    width=1024,
    heads=16,
    shared=4,
    attention=(*(("row", "column", "row", "row") * 16)[:63], "convolution"),
    kernel=11,
    tied=True,
)


def model_of(shape: Shape) -> DrawingTransformer:
    torch.manual_seed(0)
    model = DrawingTransformer(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))  # nothing is hidden by a small first value
    return model


def samples_of(shape: Shape, count: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    captions = shape.padded([[1, 2, 3], [4, 5, 6, 7, 8]] * count)[:count]
    return captions, torch.randint(shape.codes, (count, shape.places.codes), generator=generator)


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_later_code_changes_no_earlier_output_and_each_changes_its_own(kind: Any, shared: int) -> None:
    shape = replace(TINY, attention=(kind,) * 4, shared=shared)
    model = model_of(shape).double()
    captions, codes = samples_of(shape)
    with torch.no_grad():
        before = torch.cat(model(captions, codes[:, :-1]), dim=1)
        sequence = torch.cat([captions, codes[:, :-1]], dim=1)
        for place in range(shape.places.inputs):
            changed = sequence.clone()
            size = shape.tokens if place < shape.caption else shape.codes
            changed[:, place] = (changed[:, place] + 1) % size
            after = torch.cat(model(changed[:, : shape.caption], changed[:, shape.caption :]), dim=1)
            moved = (after - before).abs().amax(dim=(0, 2)) > 1e-9
            assert not moved[:place].any()
            assert moved[place]
            if place < shape.caption:
                assert moved[place:].all(), "every code knows the whole caption"


def test_layers_use_the_shared_blocks_in_turn_and_the_last_has_one_of_its_own() -> None:
    assert [TINY.block(layer) for layer in range(4)] == [0, 1, 0, 2]
    model = model_of(TINY)
    assert len(model.blocks) == 3
    used: list[int] = []
    for number, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, number=number: used.append(number))
    captions, codes = samples_of(TINY)
    model(captions, codes[:, :-1])
    assert used == [0, 1, 0, 2]


def test_each_layer_looks_at_its_own_part_of_the_picture() -> None:
    captions, codes = samples_of(TINY)
    found = []
    for attention in (("row",) * 4, ("column",) * 4, TINY.attention, TINY.attention[::-1]):
        with torch.no_grad():
            found.append(model_of(replace(TINY, attention=attention))(captions, codes[:, :-1])[1])
    assert all(not torch.allclose(one, other) for one, other in pairwise(found))


def test_a_place_without_a_token_has_an_embedding_of_its_own_and_a_long_caption_is_cut() -> None:
    assert TINY.padded([[1, 2], [], [5, 6, 7, 8, 9]]).tolist() == [[1, 2, 13, 14], [11, 12, 13, 14], [5, 6, 7, 8]]
    assert model_of(TINY).of_text.num_embeddings == 11 + 4


def test_embeddings_are_the_output_layer_only_if_they_are_tied() -> None:
    for tied in (True, False):
        model = DrawingTransformer(replace(TINY, tied=tied))
        assert (model.of_codes.weight is model.code_output.weight) is tied
        assert (model.of_text.weight is model.text_output.weight) is tied


def test_with_branches_scaled_by_nothing_the_embeddings_go_through_as_they_are() -> None:
    model = model_of(TINY)
    captions, codes = samples_of(TINY)
    with torch.no_grad():
        model.scales.zero_()
        after_tokens, after_codes = model(captions, codes[:, :-1])
        embeddings = torch.cat([model.of_text(captions), model.of_codes(codes[:, :-1])], dim=1)
    torch.testing.assert_close(torch.cat([after_tokens, after_codes], dim=1), model.norm(embeddings))


def test_memory_is_saved_block_by_block_and_the_gradients_are_the_same() -> None:
    captions, codes = samples_of(TINY)

    def loss(model: torch.nn.Module, batch: dict[str, torch.Tensor], step: int) -> Loss:
        assert isinstance(model, DrawingTransformer)
        _, after = model(batch["captions"], batch["codes"][:, :-1])
        mean = functional.cross_entropy(model.code_output(after).transpose(1, 2), batch["codes"])
        return Loss.of(mean, len(batch["codes"]))

    found = []
    for saving in (False, True):
        card = Card(FlatModel(model_of(TINY), torch.device("cpu")), loss)
        if saving:
            card.checkpointing.begin()
            assert all("forward" in vars(block) for block in card.model.blocks)  # type: ignore[union-attr]
        computed = card.measure({"captions": captions, "codes": codes})
        assert computed is not None
        gradients = {name: each.grad.clone() for name, each in card.model.named_parameters() if each.grad is not None}
        found.append((computed.loss, gradients))
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1].keys() == found[1][1].keys() >= {"scales", "of_text.weight", "blocks.2.narrow.bias"}
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], gradient)


def test_the_demonstration_has_its_parameters_and_takes_a_step_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = DrawingTransformer(DEMONSTRATION)
    assert sum(each.numel() for each in model.parameters()) == pytest.approx(125.5e6, rel=0.01)
    captions = torch.zeros(1, 256, dtype=torch.int64, device="meta")
    codes = torch.zeros(1, 1024, dtype=torch.int64, device="meta")
    after_tokens, after_codes = model(captions, codes[:, :-1])
    assert (after_tokens.shape, after_codes.shape) == ((1, 255, 1024), (1, 1024, 1024))
    model.code_output(after_codes).sum().backward()
    torch.optim.AdamW(model.parameters()).step()
