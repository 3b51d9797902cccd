"""Codes for captions, one after the other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dedloc_kit.learning.tasks.drawing.transformer import DrawingTransformer, Recall

_RECALLED_AT_ONCE = 2**28
"""Numbers that the layers recall, a gigabyte in float32."""


@dataclass(frozen=True)
class Drawn:
    """How codes are drawn.

    :ivar top_k: from so many likeliest ones
    :ivar temperature: below 1 the likeliest become likelier
    :ivar guidance_scale: how much more than without a caption its scores count: 1 takes them as they are (Ho and
        Salimans 2022, arXiv 2207.12598)
    """

    top_k: int
    temperature: float
    guidance_scale: float


@torch.inference_mode()
def generate(model: DrawingTransformer, captions: Tensor, how: Drawn, seed: int) -> Tensor:
    """The codes of a picture for each caption, int64 [captions, codes] on the CPU.

    The chance of each sample is drawn beforehand, so it does not matter which others it is drawn with.

    :param captions: as `Shape.padded` makes them
    """
    shape = model.shape
    chances = torch.rand(len(captions), shape.places.codes, generator=torch.Generator().manual_seed(seed))
    recalled = shape.layers * Recall.values_of(shape) * (1 if how.guidance_scale == 1 else 2)
    rows = max(1, _RECALLED_AT_ONCE // recalled)
    parts = zip(captions.split(rows), chances.split(rows), strict=True)
    return torch.cat([_generated(model, some, chance, how) for some, chance in parts])


def _generated(model: DrawingTransformer, captions: Tensor, chances: Tensor, how: Drawn) -> Tensor:
    shape, weights = model.shape, model.of_text.weight
    if how.guidance_scale != 1:
        captions = torch.cat([captions, shape.padded([[]]).expand_as(captions)])
    recalls = [Recall(shape, len(captions), weights) for _ in range(shape.layers)]
    channels = model.through(model.of_text(captions.to(weights.device)), 0, recalls)
    codes = torch.empty_like(chances, dtype=torch.int64)
    for number in range(shape.places.codes):
        scores = model.code_output(channels[:, -1]).float().cpu()
        codes[:, number] = drawn = draw_codes(scores, chances[:, number], how)
        if number + 1 < shape.places.codes:
            again = drawn.repeat(len(captions) // len(drawn)).to(weights.device)
            channels = model.through(model.of_codes(again)[:, None], shape.caption + number, recalls)
    return codes


def draw_codes(scores: Tensor, chances: Tensor, how: Drawn) -> Tensor:
    """A code for each sample, int64 [samples].

    :param scores: [samples, codes]; with guidance those without captions follow, [2 * samples, codes]
    :param chances: between 0 and 1, [samples]: they decide
    """
    if how.guidance_scale != 1:
        told, untold = scores.chunk(2)
        scores = untold + how.guidance_scale * (told - untold)
    best, codes = (scores / how.temperature).nan_to_num().topk(min(how.top_k, scores.shape[-1]))
    upto = best.double().softmax(dim=-1).cumsum(dim=-1)
    number = (upto <= chances[:, None]).sum(dim=-1).clamp(max=codes.shape[-1] - 1)
    return codes.gather(1, number[:, None])[:, 0]
