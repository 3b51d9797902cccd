"""What a peer of a run with experts says of itself, and who is to hold which."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from dedloc_kit.records.offer import Offer
from dedloc_kit.records.record import Accused, Count, PeerId, Record


class LayerCells(Record):
    """Cells of one layer's grid of experts."""

    layer: Count
    cells: Annotated[bytes, Field(min_length=1, max_length=512)]
    """A bit for each, row by row, the first one the highest of its byte; at most 64 x 64 cells."""


MAX_ASSIGNED_HOSTS, MAX_ASSIGNED_CELLS = 64, 2048
NOBODY = 255


class Assigned(Record):
    """Who is to hold which experts, as the organizer says; nobody else is believed."""

    hosts: Annotated[tuple[PeerId, ...], Field(max_length=MAX_ASSIGNED_HOSTS, strict=False)]
    keepers: Annotated[bytes, Field(max_length=MAX_ASSIGNED_CELLS)]
    """Of the first experts of the run in the order of their names, one after the other: which of the hosts takes its
    steps, or `NOBODY`; then the organizer does."""
    stand_ins: Annotated[bytes, Field(max_length=MAX_ASSIGNED_CELLS)]
    """Which of them holds an equal copy, or `NOBODY`."""

    @model_validator(mode="after")
    def _names_its_hosts(self) -> Self:
        places = {*self.keepers, *self.stand_ins} - {NOBODY}
        if len(self.keepers) != len(self.stand_ins) or any(place >= len(self.hosts) for place in places):
            raise ValueError("it does not say of each expert who has it")
        return self


class HostOffer(Offer):
    """What a peer of a run with experts offers."""

    wire: ClassVar[str] = "host-offer"

    state: Literal["joining", "online", "leaving"]
    layers: Annotated[tuple[LayerCells, ...], Field(max_length=64, strict=False)] = ()
    """The experts that answer here; none if it hosts nothing."""
    copies: Annotated[tuple[LayerCells, ...], Field(max_length=64, strict=False)] = ()
    """Those that it stands in for: they answer here if their keeper does not."""
    load: Annotated[bytes, Field(max_length=MAX_ASSIGNED_CELLS)] = b""
    """How many tokens go to those that answer here; see `swarm/experts/load.py`. For those who look on."""
    step: Count = 0
    """The global step whose parameters these have."""
    room: Count = 0
    """Bytes of memory for experts."""
    assigned: Assigned | None = None
    """The organizer's."""
    accuses: Accused = ()
    """Hosts of which this trainer has found that they answer wrongly, or unlike others; see `StageOffer`."""
    through: Annotated[tuple[PeerId, ...], Field(max_length=4, strict=False)] = ()
    """Peers that forward calls to it, if nobody can dial it."""

    @field_validator("layers", "copies")
    @classmethod
    def _each_layer_once(cls, layers: tuple[LayerCells, ...]) -> tuple[LayerCells, ...]:
        if len({each.layer for each in layers}) < len(layers):
            raise ValueError("a layer is named twice")
        return layers
