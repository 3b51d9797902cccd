"""Held-out captions and codes, always the same, and what a model makes of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dedloc_kit.learning.tasks.drawing.measures import CHOICES, code_losses, other_captions, share_of_true
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from dedloc_kit.learning.tasks.measuring import hash_of

WITHOUT, ANOTHER = "code loss without caption", "code loss with another caption"
TRUE_CAPTION = f"true caption of {CHOICES}"


@dataclass(frozen=True)
class HeldOut:
    """Samples in a random order.

    :ivar captions: as `Shape.padded` makes them
    :ivar codes: int64 [samples, codes]
    """

    captions: Tensor
    codes: Tensor

    @cached_property
    def hash(self) -> str:
        return hash_of([{"captions": self.captions, "codes": self.codes}])

    def __len__(self) -> int:
        return len(self.codes)


class CaptionExam:
    """What the captions tell a model of the codes.

    :param ranked: so many samples are asked which of several captions is theirs
    """

    def __init__(self, held_out: HeldOut, ranked: int, seed: int) -> None:
        self._held_out = held_out
        generator = torch.Generator().manual_seed(seed)
        self._another = torch.cat(other_captions(held_out.captions, 1, generator))
        self._others = other_captions(held_out.captions[:ranked], CHOICES - 1, generator)

    def taken(self, model: DrawingTransformer) -> tuple[float, dict[str, float]]:
        """The loss of the codes after their captions, and what else there is to tell."""
        captions, codes = self._held_out.captions, self._held_out.codes
        nothing = model.shape.padded([[]]).expand_as(captions)
        loss = float(code_losses(model, captions, codes).mean())
        told = {
            WITHOUT: float(code_losses(model, nothing, codes).mean()),
            ANOTHER: float(code_losses(model, self._another, codes).mean()),
        }
        if ranked := len(self._others):
            told[TRUE_CAPTION] = share_of_true(model, captions[:ranked], self._others, codes[:ranked])
        return loss, told
