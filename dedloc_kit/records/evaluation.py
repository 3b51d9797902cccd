"""What a model can do with held-out samples, and some of these for viewers."""

import hashlib
import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator

from dedloc_kit.records.record import PeerText, Record

ShownText = Annotated[str, AfterValidator(lambda text: re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text))]
"""Text for viewers that data brought in, which may hold anything: control characters become spaces."""


class FillMask(Record):
    """A held-out sentence with one word hidden, and what the model puts there, for viewers."""

    kind: Literal["fill-mask"] = "fill-mask"
    before: Annotated[ShownText, Field(max_length=256)]
    guess: Annotated[ShownText, Field(max_length=64)]
    truth: Annotated[ShownText, Field(max_length=64)]
    after: Annotated[ShownText, Field(max_length=256)]


class Continuation(Record):
    """The beginning of a held-out text, how the model goes on, and how the text does, for viewers."""

    kind: Literal["continuation"] = "continuation"
    before: Annotated[ShownText, Field(max_length=512)]
    written: Annotated[ShownText, Field(max_length=512)]
    truth: Annotated[ShownText, Field(max_length=512)]


MAX_PICTURE_SIDE = 48
PictureDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Picture(Record):
    """A small square picture for viewers, as bare pixels: somebody else's file would have to be decoded by all of them.

    :ivar pixels: rows of red, green and blue, one byte each
    """

    pixels: Annotated[bytes, Field(max_length=3 * MAX_PICTURE_SIDE**2)]

    @field_validator("pixels")
    @classmethod
    def _square(cls, pixels: bytes) -> bytes:
        if not pixels or 3 * math.isqrt(len(pixels) // 3) ** 2 != len(pixels):
            raise ValueError(f"{len(pixels)} bytes are no square picture")
        return pixels

    @property
    def side(self) -> int:
        return math.isqrt(len(self.pixels) // 3)

    @property
    def digest(self) -> str:
        """Names the picture wherever it is shown."""
        return hashlib.sha256(self.pixels).hexdigest()


ClassName = Annotated[ShownText, Field(max_length=64)]


class Neighbour(Record):
    """A held-out picture that a model takes for similar to another one."""

    picture: PictureDigest
    label: ClassName
    similarity: Annotated[float, Field(ge=-1, le=1)]
    """The cosine of their features."""


class Neighbours(Record):
    """A held-out picture and those that are nearest to it for a model, for viewers; the classes it was never told."""

    kind: Literal["neighbours"] = "neighbours"
    picture: PictureDigest
    label: ClassName
    """Empty where no class is known."""
    nearest: Annotated[tuple[Neighbour, ...], Field(max_length=8, strict=False)]
    """The most similar one first."""

    @property
    def pictures(self) -> list[str]:
        """The digests of all that it shows."""
        return [self.picture, *(neighbour.picture for neighbour in self.nearest)]


class Drawing(Record):
    """What a model drew for the caption of a held-out picture, for viewers; the same captions and seeds each time."""

    kind: Literal["drawing"] = "drawing"
    caption: Annotated[ShownText, Field(max_length=256)]
    picture: PictureDigest
    """What it drew."""
    real: PictureDigest | None = None
    """The picture that the caption came with, as the picture model gives it back: no drawing can be better."""

    @property
    def pictures(self) -> list[str]:
        """The digests of all that it shows."""
        return [self.picture] if self.real is None else [self.picture, self.real]


def _kind_of(sample: Any) -> Any:
    """Before there were others, samples were not marked."""
    return sample.get("kind", "fill-mask") if isinstance(sample, dict) else getattr(sample, "kind", None)


Sample = Annotated[
    Annotated[FillMask, Tag("fill-mask")]
    | Annotated[Continuation, Tag("continuation")]
    | Annotated[Neighbours, Tag("neighbours")]
    | Annotated[Drawing, Tag("drawing")],
    Discriminator(_kind_of),
]
"""What a model does with one held-out sample, for viewers."""


NO_SHARES = frozenset({"perplexity", "bits per byte", "code loss without caption", "code loss with another caption"})
"""Metrics that are not shares of a whole."""


class Evaluation(Record):
    """What a model can do with held-out samples."""

    loss: Annotated[float, Field(allow_inf_nan=True)]
    """The mean over the samples; a model that has diverged has none that is finite."""
    metrics: dict[PeerText, Annotated[float, Field(ge=0, le=1e9)]] = Field(default={}, max_length=8)
    """Shares of the whole by name, such as `masked accuracy`; what `NO_SHARES` names is any number."""
    samples: tuple[Sample, ...] = Field(default=(), max_length=8)
    pictures: tuple[Picture, ...] = Field(default=(), max_length=72)
    """Those that the samples name."""
    held_out: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """A hash of what it was measured on, so that only equal things are compared; empty if that is not known."""

    @field_validator("metrics")
    @classmethod
    def _shares(cls, metrics: dict[str, float]) -> dict[str, float]:
        if wrong := [name for name, value in metrics.items() if value > 1 and name not in NO_SHARES]:
            raise ValueError(f"{wrong[0]} is a share and cannot be more than 1")
        return metrics
