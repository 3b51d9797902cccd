"""How the experts of a run stand: who keeps each, who stands in for it, and how many tokens go to it."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, Field

from dedloc_kit.records.experts import MAX_ASSIGNED_CELLS, MAX_ASSIGNED_HOSTS
from dedloc_kit.records.record import Count, PeerId, PeerText

MAX_NAMED = 5
"""Experts in one sentence."""

Place = Annotated[int, Field(ge=0, le=MAX_ASSIGNED_HOSTS)] | None
_Cells = Field(max_length=MAX_ASSIGNED_CELLS)


class ExpertHost(BaseModel):
    """Who holds experts."""

    peer: PeerId
    name: PeerText
    organizer: bool
    kept: Count
    """Experts that it computes and whose steps it takes."""
    copies: Count
    """Those that it stands in for."""


class ExpertLayer(BaseModel):
    """The cells of one layer's grid, row by row."""

    layer: Count
    keepers: Annotated[tuple[Place, ...], _Cells]
    """Of each cell the place of its keeper among the hosts; none if nobody keeps it."""
    stand_ins: Annotated[tuple[Place, ...], _Cells]
    """Likewise who stands in for it."""
    tokens: Annotated[tuple[Count, ...], _Cells]
    """That went to it in the last finished global step, about as many as its keeper says."""

    def machines(self, cell: int) -> int:
        """That have it: 0 to 2."""
        return (self.keepers[cell] is not None) + (self.stand_ins[cell] is not None)

    def names(self, columns: int, cells: Sequence[bool]) -> list[str]:
        """Of some of its experts."""
        return [f"{self.layer}.{cell // columns}.{cell % columns}" for cell, named in enumerate(cells) if named]


def unkept(layers: Sequence[ExpertLayer], columns: int) -> tuple[str, ...]:
    """The experts that nobody keeps."""
    return tuple(name for each in layers for name in each.names(columns, [place is None for place in each.keepers]))


def single(layers: Sequence[ExpertLayer], columns: int) -> tuple[str, ...]:
    """The experts that one machine alone has."""
    return tuple(
        name
        for each in layers
        for name in each.names(columns, [each.machines(cell) == 1 for cell in range(len(each.keepers))])
    )


def named(experts: Sequence[str], cells: int) -> str:
    """Some of so many experts, in a sentence."""
    more = f" and {len(experts) - MAX_NAMED} more" if len(experts) > MAX_NAMED else ""
    return f"{len(experts)} of {cells} experts ({', '.join(experts[:MAX_NAMED])}{more})"


def held(layers: Sequence[ExpertLayer], columns: int) -> str:
    """How well the experts are held, in a sentence."""
    if not layers:
        return "the organizer's machine has all experts: there are too many to give any away"
    cells = sum(len(layer.keepers) for layer in layers)
    bare, alone = unkept(layers, columns), single(layers, columns)
    lacking = [f"nobody keeps {named(bare, cells)}"] if bare else []
    lacking += [f"one machine alone has {named(alone, cells)}"] if alone else []
    return "; ".join(lacking) or f"each of {cells} experts is on two machines"


def most_over_mean(layer: ExpertLayer) -> float:
    """How many times the mean the most used cell got; 0 while nothing is known."""
    total = sum(layer.tokens)
    return max(layer.tokens) * len(layer.tokens) / total if total else 0.0
