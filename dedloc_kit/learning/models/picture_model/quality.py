"""What is to be known of a picture model before a run stands on it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch.nn import functional

from dedloc_kit.learning.data.pictures.images import Pixels
from dedloc_kit.learning.models.picture_model import PictureModel
from dedloc_kit.learning.models.picture_model.encoding import stacked


@dataclass(frozen=True)
class Quality:
    """What a picture model makes of pictures."""

    decibels: float
    """Peak signal-to-noise ratio of decoded pictures."""
    used: int
    """How many codes they have."""


def quality(model: PictureModel, pictures: Sequence[Pixels]) -> Quality:
    """What a model makes of pictures, at least one."""
    whole = stacked(pictures)
    codes = model.encode(whole)
    error = float(functional.mse_loss(model.decode(codes).float(), whole.float()))
    return Quality(10 * math.log10(255**2 / max(error, 1e-9)), len(codes.unique()))
