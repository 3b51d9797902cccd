"""What captions do to the codes that a model expects."""

import torch
from torch import Tensor
from torch.nn import functional

from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer

CHOICES = 16
"""Captions, one of which is the picture's."""
_PLACES_AT_ONCE = 8192


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
