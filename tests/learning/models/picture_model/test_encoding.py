"""What is told of a picture model."""

import numpy as np
import pytest
import torch

from dedloc_kit.learning.models.picture_model.encoding import quality
from dedloc_kit.learning.models.picture_model.loading import PictureModel


class Darker(PictureModel):
    """Makes everything the same dark gray."""

    def __init__(self) -> None:
        self.codes, self.side, self.size = 32, 4, 16

    def encode(self, pictures: torch.Tensor) -> torch.Tensor:
        codes = torch.zeros(len(pictures), 4, 4, dtype=torch.int64)
        codes[-1, 0, 0] = 5
        return codes

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return torch.full((len(codes), 3, 16, 16), 90, dtype=torch.uint8)


def test_decibels_are_those_of_the_mean_squared_error_and_codes_are_counted_once() -> None:
    gray = np.full((16, 16, 3), 100, np.uint8)
    found = quality(Darker(), [gray, gray])
    assert found.decibels == pytest.approx(20 * np.log10(255 / 10))
    assert found.used == 2
