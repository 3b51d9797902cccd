"""A small convolutional autoencoder with a codebook: the kit's own kind of picture model."""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from dedloc_kit.config.section import Section

_WIDER_AT_MOST = 4
_GROUPS = 8


class Architecture(Section):
    """What its configuration file says of it."""

    codes: int = Field(ge=2, le=65536)
    scale: int = Field(ge=2, le=64)
    """Pixels along each side that become one code: a power of two."""
    width: int = Field(ge=_GROUPS, le=1024, multiple_of=_GROUPS)
    """Channels at full size; twice as many at half of it, four times at a quarter and below."""
    code_width: int = Field(ge=2, le=256)
    """Numbers that a code stands for."""


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


class Autoencoder(nn.Module):
    """Pictures, float [n, 3, size, size] from -1 to 1, to codes, int64 [n, side, side], and back."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        halvings = architecture.scale.bit_length() - 1
        widths = [architecture.width * min(2**level, _WIDER_AT_MOST) for level in range(halvings)]
        down: list[nn.Module] = []
        up: list[nn.Module] = [nn.Conv2d(architecture.code_width, widths[-1], 3, padding=1)]
        for before, width in zip([3, *widths], widths, strict=False):
            down += [nn.Conv2d(before, width, 4, 2, 1), _Residual(width)]
        for width, after in zip(widths[::-1], [*widths[-2::-1], widths[0]], strict=True):
            up += [_Residual(width), nn.Upsample(scale_factor=2), nn.Conv2d(width, after, 3, padding=1)]
        self.encoder = nn.Sequential(*down, nn.Conv2d(widths[-1], architecture.code_width, 1))
        self.decoder = nn.Sequential(*up, nn.SiLU(), nn.Conv2d(widths[0], 3, 3, padding=1))
        self.codebook = Codebook(architecture.codes, architecture.code_width)

    def directions(self, pictures: Tensor) -> Tensor:
        """What the codebook is asked for: [n, side, side, code_width], each of length 1."""
        return functional.normalize(self.encoder(pictures).movedim(1, -1), dim=-1)

    def codes_of(self, pictures: Tensor) -> Tensor:
        directions = self.directions(pictures)
        return self.codebook.nearest(directions.flatten(0, 2)).view(directions.shape[:3])

    def picture_of(self, codes: Tensor) -> Tensor:
        return self.drawn(self.codebook.look_up(codes))

    def drawn(self, directions: Tensor) -> Tensor:
        """Pictures of what the codebook answers."""
        pictures: Tensor = self.decoder(directions.movedim(-1, 1).contiguous())
        return pictures


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.GroupNorm(_GROUPS, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.GroupNorm(_GROUPS, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
        )

    def forward(self, features: Tensor) -> Tensor:
        return features + torch.as_tensor(self.layers(features))
