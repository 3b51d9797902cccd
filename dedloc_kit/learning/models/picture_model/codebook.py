"""The codebook of a picture model."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Codebook(nn.Module):
    """Directions, one for each code: a place of a picture has the code whose direction is nearest to its own.

    :ivar words: [codes, width]; no parameter, since no gradient moves it
    """

    words: Tensor

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("words", functional.normalize(torch.randn(codes, width), dim=-1))

    def nearest(self, directions: Tensor) -> Tensor:
        """The codes, [n], of directions of length 1, [n, width]."""
        return (directions @ functional.normalize(self.words, dim=-1).T).argmax(-1)

    def look_up(self, codes: Tensor) -> Tensor:
        """The directions, [n, side, side, width], of codes, [n, side, side]."""
        return functional.normalize(self.words, dim=-1)[codes]
