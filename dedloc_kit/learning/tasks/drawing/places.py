"""Where the tokens of a caption and the codes of its picture stand, and what each of them may look at."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

Attention = Literal["full", "row", "column", "convolution"]
KINDS = get_args(Attention)

_TEXT_BASE = 10_000.0
_FAR_TEXT, _FAR_PICTURE = 8192.0, -10.0
"""Where codes stand in the text, and tokens in the picture (in its sides): far from all that do stand there."""


@dataclass(frozen=True)
class Places:
    """Of one sample: first the tokens of the caption, then the codes row by row.

    What goes into the model are all of them but for the last code, since each is told what comes next.

    :ivar caption: tokens
    :ivar side: codes along each side of the picture
    """

    caption: int
    side: int

    @property
    def codes(self) -> int:
        """Of a picture."""
        return self.side**2

    @property
    def inputs(self) -> int:
        """Places that go into the model."""
        return self.caption + self.codes - 1


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # whoever asks first, others may need it for their gradients
def mask(places: Places, attention: str, kernel: int, device: torch.device) -> Tensor:
    """Which places each place looks at, bool [inputs, inputs]: none after it, and all of the caption that is not.

    :param attention: one of `KINDS`: what of the picture, all of it, the place's own row, its own column, or
        (`convolution`) what is at most half of `kernel` codes away, up and to each side
    """
    number = torch.arange(places.inputs, device="cpu")
    code = number - places.caption
    rows, columns = code // places.side, code % places.side
    match attention:
        case "full":
            near = torch.ones(1, 1, dtype=torch.bool)
        case "row":
            near = rows[:, None] == rows
        case "column":
            near = columns[:, None] == columns
        case "convolution":
            near = ((rows[:, None] - rows).abs() <= kernel // 2) & ((columns[:, None] - columns).abs() <= kernel // 2)
        case _:
            raise ValueError(f"there is no attention {attention!r}")
    return ((number <= number[:, None]) & ((code < 0) | near)).to(device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def rotation(places: Places, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """By what angles the channels of a head turn at each place (Su et al. 2021, arXiv 2104.09864).

    A third of them by the place in the text, a third by the row and a third by the column.

    :param width: channels of a head
    :return: cosines and sines, each float32 [inputs, pairs of channels that turn]
    """
    pairs = width // 6
    code = torch.arange(places.inputs, device="cpu") - places.caption
    is_code = code >= 0
    text = torch.where(is_code, _FAR_TEXT, code + places.caption)
    far = _FAR_PICTURE * places.side
    rows, columns = (torch.where(is_code, each, far) for each in (code // places.side, code % places.side))
    share = torch.arange(pairs, device="cpu") / pairs
    of_text = _TEXT_BASE**-share
    # From half a turn over the whole picture to a quarter of one at each step.
    of_picture = math.pi / places.side * (places.side / 2) ** share
    angles = torch.cat([text[:, None] * of_text, rows[:, None] * of_picture, columns[:, None] * of_picture], dim=1)
    return angles.cos().to(device), angles.sin().to(device)


def turned(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys, turned by the angles of their places.

    :param heads: [..., places, channels of a head]; its first channels turn, in pairs
    :param angles: cosines and sines, each [places, pairs]
    """
    cosines, sines = angles
    pairs = cosines.shape[-1]
    one, other, still = heads[..., :pairs], heads[..., pairs : 2 * pairs], heads[..., 2 * pairs :]
    return torch.cat([one * cosines - other * sines, one * sines + other * cosines, still], dim=-1).to(heads.dtype)


def shifted(channels: Tensor, places: Places) -> Tensor:
    """The same with half of the channels from the places before.

    In the caption from the token before; in the picture a quarter from the code above and a quarter from the one to
    the left. Where there is no such code, nothing.

    :param channels: [samples, places, width], from the first place on
    """
    width = channels.shape[-1]
    quarter, half = width // 4, width // 2
    text, picture = channels[:, : places.caption], channels[:, places.caption :]
    before = torch.nn.functional.pad(text[:, :-1, :half], (0, 0, 1, 0))
    text = torch.cat([before, text[..., half:]], dim=-1)
    count = picture.shape[1]
    if not count:
        return text
    filled = torch.nn.functional.pad(picture[..., :half], (0, 0, 0, places.codes - count))
    grid = filled.unflatten(1, (places.side, places.side))
    above = torch.nn.functional.pad(grid[:, :-1, :, :quarter], (0, 0, 0, 0, 1, 0))
    left = torch.nn.functional.pad(grid[:, :, :-1, quarter:], (0, 0, 1, 0))
    neighbours = torch.cat([above, left], dim=-1).flatten(1, 2)[:, :count]
    return torch.cat([text, torch.cat([neighbours, picture[..., half:]], dim=-1)], dim=1)


def shifted_code(channels: Tensor, code: int, row: Tensor) -> Tensor:
    """What `shifted` does for one code alone.

    :param channels: [samples, 1, width]
    :param code: its number
    :param row: [samples, side, half of the width], the first channels of the codes of a row: of those that were last at
        each column, which are the ones above and to the left. Those of this code are put there.
    """
    side = row.shape[1]
    column = code % side
    width = channels.shape[-1]
    quarter, half = width // 4, width // 2
    nothing = torch.zeros_like(row[:, 0, :quarter])
    above = row[:, column, :quarter].clone() if code >= side else nothing
    left = row[:, column - 1, quarter:] if column else nothing
    row[:, column] = channels[:, 0, :half]
    return torch.cat([above[:, None], left[:, None], channels[..., half:]], dim=-1)
