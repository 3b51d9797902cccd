"""A codebook that follows what it is shown, by exponential moving averages, as VQ-VAE-2 learns (Razavi et al. 2019)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

_KEPT = 0.99
"""Of the averages, at each step."""
_UNUSED = 0.03
"""A code that is used less than this share of the mean is dealt anew."""


class Codebook(nn.Module):
    """Directions, one for each code: a place of a picture has the code whose direction is nearest to its own.

    :ivar words: [codes, width]; no parameter, since no gradient moves it
    """

    words: Tensor
    _uses: Tensor
    _sums: Tensor

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("words", functional.normalize(torch.randn(codes, width), dim=-1))
        self.register_buffer("_uses", torch.ones(codes), persistent=False)
        self.register_buffer("_sums", self.words.clone(), persistent=False)

    def nearest(self, directions: Tensor) -> Tensor:
        """The codes, [n], of directions of length 1, [n, width]."""
        return (directions @ functional.normalize(self.words, dim=-1).T).argmax(-1)

    def look_up(self, codes: Tensor) -> Tensor:
        """The directions, [n, side, side, width], of codes, [n, side, side]."""
        return functional.normalize(self.words, dim=-1)[codes]

    @torch.no_grad()
    def follow(self, directions: Tensor, codes: Tensor, generator: torch.Generator) -> None:
        """Move each code towards the directions, [n, width], that have it; deal those anew that hardly any has.

        :param generator: on the CPU; draws which directions such codes become
        """
        chosen = functional.one_hot(codes, len(self.words)).to(directions.dtype)
        self._uses.lerp_(chosen.sum(0), 1 - _KEPT)
        self._sums.lerp_(chosen.T @ directions, 1 - _KEPT)
        mean = self._uses.mean()
        unused = self._uses < _UNUSED * mean
        drawn = torch.randint(len(directions), (int(unused.sum()),), generator=generator).to(directions.device)
        self._sums[unused] = directions[drawn] * mean
        self._uses[unused] = mean
        self.words.copy_(self._sums / self._uses[:, None])
