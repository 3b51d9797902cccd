"""Models that make codes of pictures, and pictures of codes: an organizer trains one or takes one from the Hub.

Only the organizer's machine has one. Volunteers read codes, which are numbers (`data.pictures.codes`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from dedloc_kit.learning.data.pictures.codes import PictureCodes


class PictureModel(Protocol):
    """A trained picture model. Both ways work through a few pictures at a time, however many there are."""

    codes: int
    """How many different codes there are."""
    side: int
    """Codes along each side of a picture."""
    size: int
    """Pixels along each side of a picture."""

    def encode(self, pictures: Tensor) -> Tensor:
        """The codes, int64 [n, side, side], of pictures, uint8 [n, 3, size, size]."""
        ...

    def decode(self, codes: Tensor) -> Tensor:
        """The pictures, uint8 [n, 3, size, size], of codes, int64 [n, side, side]."""
        ...


def load_picture_model(pictures: PictureCodes, device: str = "cpu") -> PictureModel:
    """The picture model that a run names, from its folder or from the Hub.

    Raises UserError with the fix if it is not there, holds no weights in safetensors, or is another one than the run's
    file says.
    """
    from dedloc_kit.learning.models.picture_model.loading import load

    return load(pictures, device)
