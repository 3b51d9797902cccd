"""What a peer of a pipeline says of itself."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dedloc_kit.records.offer import Offer
from dedloc_kit.records.record import Accused, Count, Digest, Record, Time

MAX_MICROBATCHES_PER_SECOND = 1e6


class Begun(Record):
    """What a driver of a pipeline has begun of the batch that leads from a global step to the next one."""

    step: Count
    """Whose parameters it wants."""
    samples: Count
    final: bool
    """It begins no more for it."""


Stage = Annotated[int, Field(ge=0, lt=64)]
MAX_IN_FLIGHT = 128
_Some = Annotated[int, Field(ge=0, le=MAX_IN_FLIGHT)]
InFlight = Annotated[tuple[_Some, _Some], Field(strict=False)]
"""Of one driver's microbatches those that are at a stage, or on their way there: forward and backward."""


class StageMove(Record):
    """A move to another stage that a stage peer has announced."""

    stage: Stage
    announced: Time
    """By the clock of the directory."""
    begun: bool = False


class StageOffer(Offer):
    """What a peer of a pipeline offers."""

    wire: ClassVar[str] = "stage-offer"

    stage: Stage | None
    """That it holds; none if it only drives."""
    state: Literal["joining", "online", "moving", "leaving"]
    """`joining`: it loads its stage; `moving`: it serves it until another is loaded."""
    step: Count = 0
    """The global step whose parameters of its stage it holds."""
    round: Digest = ""
    """The all-reduce that led to it."""
    microbatches_per_second: Annotated[float, Field(ge=0, le=MAX_MICROBATCHES_PER_SECOND)] = 0.0
    """Through its stage, forward and backward; 0 before it is measured."""
    queue: Count = 0
    """Calls that wait."""
    upload: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """See `Progress`."""
    begun: Begun | None = None
    """None if it does not drive."""
    in_flight: Annotated[tuple[InFlight, ...], Field(max_length=64, strict=False)] = ()
    """At each stage, of the moment in which this is said; empty if it does not drive."""
    driven: Count = 0
    """Samples through all stages, in this session; so is the next one."""
    served: Count = 0
    """Samples through its stage."""
    accuses: Accused = ()
    """Stage peers of which this driver has found that they answer wrongly, the latest ones. For the organizer, who
    weighs it; no other peer acts on it."""
    moving: StageMove | None = None
    moved: Time = 0.0
    """When it last began to move; 0 if it never has."""
    pinned: bool = False
    """Its owner chose the stage."""

    @property
    def since(self) -> float:
        """When this session began to drive; whoever has a stage comes before all who only drive."""
        return self.moved if self.stage is None else 0.0
