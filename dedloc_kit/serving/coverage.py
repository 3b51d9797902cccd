"""How well the layers of a model are served, by what the servers say."""

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

SERVING_STATES = ("online", "moving")
"""In these a server answers with the layers that it names."""


class Offered(Protocol):
    """What a server says of itself."""

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def version(self) -> str: ...

    @property
    def older(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def decoding(self) -> float: ...


@dataclass(frozen=True)
class Stretch:
    """Layers from `begin` up to before `end` that the same servers serve.

    :ivar speed: tokens a second that each of these layers passes, of all its servers together
    """

    begin: int
    end: int
    servers: int
    speed: float

    def __len__(self) -> int:
        return self.end - self.begin

    def __str__(self) -> str:
        """As people read it: the last layer included."""
        return str(self.begin) if len(self) == 1 else f"{self.begin} to {self.end - 1}"


def coverage(layers: int, servers: Collection[Offered], version: str) -> tuple[Stretch, ...]:
    """All layers of a model in stretches, first layer first; only who serves this version counts."""
    there = [each for each in servers if version in {each.version, each.older} - {""} and each.state in SERVING_STATES]
    edges = sorted({0, layers, *(min(edge, layers) for each in there for edge in (each.begin, each.end))})
    found = []
    for begin, end in itertools.pairwise(edges):
        here = [each.decoding for each in there if each.begin <= begin and end <= each.end]
        found.append(Stretch(begin, end, len(here), sum(here)))
    return tuple(found)


def served_by(servers: int, stretches: Iterable[Stretch]) -> tuple[str, ...]:
    """The layers that just so many serve, as people read them."""
    found: list[Stretch] = []
    for stretch in stretches:
        if stretch.servers == servers:
            begin = found.pop().begin if found and found[-1].end == stretch.begin else stretch.begin
            found.append(replace(stretch, begin=begin))
    return tuple(map(str, found))


def named(layers: Collection[str]) -> str:
    """As `served_by` gives them, in a sentence."""
    one = len(layers) == 1 and " " not in "".join(layers)
    return f"layer {''.join(layers)}" if one else f"the layers {', '.join(layers)}"


def speed(stretches: Collection[Stretch]) -> float:
    """Tokens a second that the whole model passes: those of its worst-served layer."""
    return min((stretch.speed for stretch in stretches), default=0.0)
