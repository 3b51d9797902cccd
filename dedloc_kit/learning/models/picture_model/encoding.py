"""Pictures with captions as token ids and codes, and how well a picture model tells pictures by codes."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dedloc_kit.learning.data.pictures.codes import Captioned
from dedloc_kit.learning.data.pictures.images import Pixels
from dedloc_kit.learning.data.text.plain import PlainTokenizer
from dedloc_kit.learning.data.text.tokens import ids_dtype
from dedloc_kit.learning.models.picture_model.captioned import CaptionedFile
from dedloc_kit.learning.models.picture_model.loading import PictureModel

_AT_ONCE = 64
_LONGEST_TOKEN = 64
"""Characters, more or less: of a longer caption no more is looked at than may come into its tokens."""


class Encoder:
    """Makes samples of pictures and captions, and counts those whose caption has no token.

    :param caption_tokens: that are kept of a caption
    """

    def __init__(self, model: PictureModel, tokenizer: Any, caption_tokens: int, left_out: Counter[str]) -> None:
        self._model = model
        self._tokenizer = PlainTokenizer(tokenizer).backend
        self._ids = ids_dtype(len(tokenizer))
        self._caption_tokens = caption_tokens
        self._left_out = left_out

    def samples(self, pictures: Iterator[tuple[Pixels, CaptionedFile]]) -> Iterator[Captioned]:
        while some := list(islice(pictures, _AT_ONCE)):
            texts = [file.caption[: self._caption_tokens * _LONGEST_TOKEN] for _, file in some]
            captions = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            codes = self._model.encode(stacked(pixels for pixels, _ in some)).flatten(1).numpy().astype(np.uint16)
            for caption, each in zip(captions, codes, strict=True):
                if ids := caption.ids[: self._caption_tokens]:
                    yield Captioned(np.array(ids, self._ids), each)
                else:
                    self._left_out["captions without a token"] += 1


def stacked(pictures: Iterable[Pixels]) -> Tensor:
    """Uint8 [n, 3, size, size]."""
    return torch.from_numpy(np.stack(list(pictures))).permute(0, 3, 1, 2).contiguous()


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
