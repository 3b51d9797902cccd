"""Codes that are drawn one after the other."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from dedloc_kit.learning.tasks.drawing import generation
from dedloc_kit.learning.tasks.drawing.generation import Drawn, draw_codes, generate
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer, Shape
from tests.learning.tasks.drawing.test_transformer import TINY, model_of

HOW = Drawn(top_k=5, temperature=0.8, guidance_scale=1.0)
CAPTIONS = [[1, 2, 3], [], [4, 5, 6, 7, 8], [9]]


def plain(model: DrawingTransformer, captions: torch.Tensor, how: Drawn, seed: int) -> torch.Tensor:
    """Everything from its beginning for each code."""
    shape = model.shape
    chances = torch.rand(len(captions), shape.places.codes, generator=torch.Generator().manual_seed(seed))
    codes = torch.zeros(len(captions), 0, dtype=torch.int64)
    nothing = shape.padded([[]]).expand_as(captions)
    for number in range(shape.places.codes):
        with torch.no_grad():
            scores = [model.code_output(model(each, codes)[1][:, -1]) for each in (captions, nothing)]
        both = torch.cat(scores) if how.guidance_scale != 1 else scores[0]
        codes = torch.cat([codes, draw_codes(both, chances[:, number], how)[:, None]], dim=1)
    return codes


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("shape", [TINY, replace(TINY, attention=("column", "convolution", "row"), shared=1, side=4)])
def test_what_layers_recall_gives_the_codes_that_all_places_give(shape: Shape, guidance: float) -> None:
    model, how = model_of(shape).double(), replace(HOW, guidance_scale=guidance)
    captions = shape.padded(CAPTIONS)
    found = generate(model, captions, how, 7)
    assert torch.equal(found, plain(model, captions, how, 7))
    assert found.unique().numel() > 3
    assert not torch.equal(found, generate(model, captions, how, 8))


def test_a_caption_is_drawn_alike_whatever_is_drawn_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, captions = model_of(TINY).double(), TINY.padded(CAPTIONS)
    together = generate(model, captions, HOW, 7)
    monkeypatch.setattr(generation, "_RECALLED_AT_ONCE", 1)
    assert torch.equal(generate(model, captions, HOW, 7), together)
    assert torch.equal(generate(model, captions[:2], HOW, 7), together[:2])


def test_codes_are_as_frequent_as_the_scores_of_the_best_say() -> None:
    shares = torch.tensor([0.5, 0.3, 0.15, 0.05])
    chances = (torch.arange(10_000) + 0.5) / 10_000

    def drawn(scores: torch.Tensor, how: Drawn) -> dict[int, float]:
        codes = draw_codes(scores.expand(len(chances), -1), chances, how)
        return {code: count / len(chances) for code, count in Counter(codes.tolist()).items()}

    assert drawn(shares.log(), Drawn(4, 1.0, 1.0)) == pytest.approx({0: 0.5, 1: 0.3, 2: 0.15, 3: 0.05}, abs=1e-3)
    assert drawn(shares.log(), Drawn(2, 1.0, 1.0)) == pytest.approx({0: 0.625, 1: 0.375}, abs=1e-3)
    assert drawn(shares.log(), Drawn(2, 0.5, 1.0)) == pytest.approx({0: 25 / 34, 1: 9 / 34}, abs=1e-3)
    assert drawn(torch.full((4,), torch.nan), Drawn(4, 1.0, 1.0)).keys() == {0, 1, 2, 3}, "of a diverged model too"


def test_guidance_goes_beyond_what_the_caption_adds() -> None:
    told, untold = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([[2.0, 0.0, 0.0]])
    best = {
        guidance: draw_codes(torch.cat([told, untold]), torch.tensor([0.1]), Drawn(1, 1.0, guidance)).item()
        for guidance in (0.0, 1.5, 3.0)
    }
    assert best == {0.0: 0, 1.5: 0, 3.0: 1}
