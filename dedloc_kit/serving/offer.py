"""What a server says of itself."""

import hashlib
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dedloc_kit.records.offer import Offer
from dedloc_kit.records.record import Count, Digest, Record, RunId, SignedRecord, Time
from dedloc_kit.serving.config import Sha256, WeightFormat

MAX_LAYERS = 1024
MAX_SPEED = 1e6
"""Tokens a second."""
MAX_NEIGHBOURS = 16
MAX_VERSIONS = 2
"""Of a run's model that are handed out, and that a server holds."""

Layer = Annotated[int, Field(ge=0, le=MAX_LAYERS)]
Speed = Annotated[float, Field(ge=0, le=MAX_SPEED)]
ShortId = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]


class Release(SignedRecord):
    """The organizer's word which versions of a run's model there are, signed."""

    wire: ClassVar[str] = "release"

    run_id: RunId
    versions: Annotated[tuple[Sha256, ...], Field(min_length=1, max_length=MAX_VERSIONS, strict=False)]
    """The digests of each `ModelVersion` that the organizer hands out, the newest first."""
    time: Time


class Moving(Record):
    """A move to other layers, or a change to a newer version of the same ones, that a server has announced."""

    begin: Layer
    end: Layer
    announced: Time
    """By the clock of the directory."""
    begun: bool = False
    version: Digest = ""
    """To which it changes; empty for a move."""


class Serving(Offer):
    """What a server offers."""

    wire: ClassVar[str] = "serving"

    version: Digest
    """The digest of the weights' manifest."""
    older: Digest = ""
    """The same of an older version of its layers, with which it still answers as well."""
    form: WeightFormat
    begin: Layer
    end: Layer
    """Layers from `begin` up to before `end`."""
    state: Literal["joining", "online", "moving", "leaving"]
    """`joining`: it loads them; `moving`: it serves them until others are loaded, and takes no new sessions."""
    decoding: Speed = 0.0
    """Tokens a second through all its layers, one by one; 0 before it is measured, as the next two."""
    prompts: Speed = 0.0
    """Of a prompt."""
    passes: Speed = 0.0
    """Forward and backward."""
    cache_tokens: Count = 0
    free_tokens: Count = 0
    sessions: Count = 0
    served: Count = 0
    """Tokens times layers in this session."""
    moving: Moving | None = None
    moved: Time = 0.0
    """When it last began to move; 0 if it never has."""
    pinned: bool = False
    """Its owner chose the span."""
    round_trips: dict[ShortId, Annotated[float, Field(ge=0, le=60)]] = Field(default={}, max_length=MAX_NEIGHBOURS)
    """Seconds to those who serve the next layers, by `short_id`."""

    @model_validator(mode="after")
    def _has_layers(self) -> Self:
        if self.begin >= self.end or (self.moving is not None and self.moving.begin >= self.moving.end):
            raise ValueError("a span of layers ends after it begins")
        return self


def short_id(peer: str) -> str:
    """A peer's id where many are named in little space."""
    return hashlib.sha256(peer.encode()).hexdigest()[:12]
