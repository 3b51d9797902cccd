"""What captions tell, of a model whose answers are known."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from dedloc_kit.learning.tasks.drawing.evaluation import (
    ANOTHER,
    TRUE_CAPTION,
    WITHOUT,
    CaptionExam,
    code_losses,
    other_captions,
)
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from tests.learning.tasks.drawing.test_transformer import TINY

SHAPE = replace(TINY, width=28, codes=28, tied=False)
SURE = 3.0
COUNT = 24


class Knowing(DrawingTransformer):
    """Is as sure of the one code that belongs to a caption as of no other, at each place; without one it knows none."""

    def forward(self, captions: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            self.code_output.weight.copy_(torch.eye(28))
        told = functional.one_hot(code_of(captions), 28) * (captions[:, :1] < SHAPE.tokens)
        return torch.zeros(0), (SURE * told)[:, None].expand(-1, SHAPE.places.codes, -1).float()


def code_of(captions: torch.Tensor) -> torch.Tensor:
    return (captions[:, 0] + 11 * captions[:, 1]) % 28


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    captions = SHAPE.padded([[number % 11, number // 11] for number in range(COUNT)])
    codes = code_of(captions)[:, None].expand(-1, SHAPE.places.codes)
    return captions, codes


def test_losses_are_those_of_the_codes_after_each_kind_of_caption() -> None:
    loss, told = CaptionExam(*held_out(), 8, 0).taken(Knowing(SHAPE))
    total = math.exp(SURE) + 27
    assert loss == pytest.approx(math.log(total) - SURE, abs=1e-5)
    assert told[WITHOUT] == pytest.approx(math.log(28), abs=1e-5)
    assert told[TRUE_CAPTION] == 1.0
    assert told[ANOTHER] == pytest.approx(math.log(total), abs=1e-5), "it is as sure of a wrong code"


def test_who_knows_nothing_finds_no_caption() -> None:
    class Ignorant(Knowing):
        def forward(self, captions: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            nothing, known = super().forward(captions, codes)
            return nothing, torch.zeros_like(known)

    loss, told = CaptionExam(*held_out(), 8, 0).taken(Ignorant(SHAPE))
    assert loss == told[WITHOUT] == told[ANOTHER] == pytest.approx(math.log(28), abs=1e-5)
    assert told[TRUE_CAPTION] == 0.0
    assert TRUE_CAPTION not in CaptionExam(*held_out(), 0, 0).taken(Ignorant(SHAPE))[1]


def test_a_loss_is_that_of_its_own_codes_alone() -> None:
    captions, codes = held_out()
    wrong = codes.clone()
    wrong[3, :3] = (wrong[3, :3] + 1) % 28
    losses = code_losses(Knowing(SHAPE), captions, wrong)
    right = math.log(math.exp(SURE) + 27) - SURE
    expected = [right + (SURE / 3 if number == 3 else 0) for number in range(COUNT)]
    assert losses.tolist() == pytest.approx(expected, abs=1e-5)


def test_other_captions_are_different_ones_and_the_same_each_time() -> None:
    captions = SHAPE.padded([[1], [2], [1], [3], [1, 2]])
    found = other_captions(captions, 15, torch.Generator().manual_seed(0))
    for caption, others in zip(captions, found, strict=True):
        assert len(others) == len(others.unique(dim=0)) == 3
        assert not (others == caption).all(1).any()
    again = other_captions(captions, 15, torch.Generator().manual_seed(0))
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    assert [len(others) for others in other_captions(captions, 1, torch.Generator())] == [1] * 5
