"""What a model makes of held-out captions and codes, always the same ones: losses, right captions, drawings."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from dedloc_kit.learning.tasks.drawing.generation import Drawn, generate
from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer
from dedloc_kit.learning.tasks.features.neighbours import small_picture
from dedloc_kit.records.evaluation import Drawing, Picture

CHOICES = 16
"""Captions, one of which is the picture's."""
_PLACES_AT_ONCE = 8192
WITHOUT, ANOTHER = "code loss without caption", "code loss with another caption"
TRUE_CAPTION = f"true caption of {CHOICES}"
SHOWN = 6
_CHARACTERS = 256


class CaptionExam:
    """What the captions tell a model of the codes.

    :param captions: of held-out samples in a random order, as `Shape.padded` makes them
    :param codes: of the same ones, int64 [samples, codes]
    :param ranked: so many samples are asked which of several captions is theirs
    """

    def __init__(self, captions: Tensor, codes: Tensor, ranked: int, seed: int) -> None:
        self._captions, self._codes = captions, codes
        generator = torch.Generator().manual_seed(seed)
        self._another = torch.cat(other_captions(captions, 1, generator))
        self._others = other_captions(captions[:ranked], CHOICES - 1, generator)

    def taken(self, model: DrawingTransformer) -> tuple[float, dict[str, float]]:
        """The loss of the codes after their captions, and what else there is to tell."""
        captions, codes = self._captions, self._codes
        nothing = model.shape.padded([[]]).expand_as(captions)
        loss = float(code_losses(model, captions, codes).mean())
        told = {
            WITHOUT: float(code_losses(model, nothing, codes).mean()),
            ANOTHER: float(code_losses(model, self._another, codes).mean()),
        }
        if ranked := len(self._others):
            told[TRUE_CAPTION] = share_of_true(model, captions[:ranked], self._others, codes[:ranked])
        return loss, told


class ShownDrawings:
    """A few held-out captions, which the model draws.

    :param texts: the captions in words
    :param captions: the same, as `Shape.padded` makes them
    :param codes: those of the pictures that they came with, int64 [captions, codes]
    :param decode: what makes pictures uint8 [pictures, 3, size, size] of such codes
    """

    def __init__(
        self,
        texts: Sequence[str],
        captions: Tensor,
        codes: Tensor,
        decode: Callable[[Tensor], Tensor],
        how: Drawn,
        seed: int,
    ) -> None:
        self._texts, self._captions, self._decode, self._how, self._seed = texts, captions, decode, how, seed
        self._real = [small_picture(picture) for picture in decode(codes)]

    def drawn(self, model: DrawingTransformer) -> tuple[tuple[Drawing, ...], tuple[Picture, ...]]:
        """Each with the picture that the caption came with, and all pictures that these name."""
        made = self._decode(generate(model, self._captions, self._how, self._seed))
        pictures = [small_picture(picture) for picture in made]
        samples = tuple(
            Drawing(caption=text[:_CHARACTERS], picture=picture.digest, real=real.digest)
            for text, picture, real in zip(self._texts, pictures, self._real, strict=True)
        )
        return samples, tuple({each.digest: each for each in (*pictures, *self._real)}.values())


def first_different(captions: Tensor, count: int) -> list[int]:
    """The numbers of the first captions of which no two are alike, at most so many."""
    found: dict[bytes, int] = {}
    for number, caption in enumerate(captions):
        found.setdefault(caption.numpy().tobytes(), number)
    return list(found.values())[:count]


@torch.inference_mode()
def code_losses(model: DrawingTransformer, captions: Tensor, codes: Tensor) -> Tensor:
    """The mean loss of the codes of each sample after its caption, in nats: float32 [samples] on the CPU.

    :param captions: as `Shape.padded` makes them
    :param codes: int64 [samples, codes]
    """
    rows = max(1, _PLACES_AT_ONCE // model.shape.places.inputs)
    device = model.of_text.weight.device
    found = []
    for some, of_some in zip(captions.split(rows), codes.split(rows), strict=True):
        _, channels = model(some.to(device), of_some[:, :-1].to(device))
        scores = model.code_output(channels).float().transpose(1, 2)
        found.append(functional.cross_entropy(scores, of_some.to(device), reduction="none").mean(1).cpu())
    return torch.cat(found)


def other_captions(captions: Tensor, count: int, generator: torch.Generator) -> list[Tensor]:
    """For each caption so many different others out of these, or as many as there are: each [captions, places].

    :param captions: int64 [captions, places], of which some may be alike
    """
    distinct = captions.unique(dim=0)
    found = []
    for caption in captions:
        others = distinct[(distinct != caption).any(1)]
        found.append(others[torch.randperm(len(others), generator=generator)[:count]])
    return found


def share_of_true(model: DrawingTransformer, captions: Tensor, others: list[Tensor], codes: Tensor) -> float:
    """For how many pictures their own caption makes the codes likelier than each of its others does.

    :param captions: of each picture, [pictures, places]
    :param others: for each of these, as `other_captions` gives them
    :param codes: int64 [pictures, codes]
    """
    right = 0
    for own, among, of_picture in zip(captions, others, codes, strict=True):
        choices = torch.cat([own[None], among])
        losses = code_losses(model, choices, of_picture.expand(len(choices), -1))
        right += bool((losses[0] < losses[1:]).all())
    return right / len(codes)
