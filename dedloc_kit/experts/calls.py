"""How a layer reaches its experts, whoever holds them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor


class Cell(NamedTuple):
    """A place in a layer's grid, from 0 on."""

    row: int
    column: int


class ExpertName(NamedTuple):
    """What an expert goes by in all of a run."""

    layer: int
    row: int
    column: int

    @property
    def cell(self) -> Cell:
        return Cell(self.row, self.column)

    def __str__(self) -> str:
        return f"{self.layer}.{self.row}.{self.column}"


Ticket: TypeAlias = object
"""What whoever holds experts finds again by it what a forward call has left there; nobody else looks into it."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What experts made of their inputs.

    :ivar outputs: as large as the inputs, float32 and finite, of those who answered alone
    :ivar ticket: for the backward call; none if nothing was kept for one
    """

    outputs: Mapping[Cell, Tensor]
    ticket: Ticket | None


class Experts(Protocol):
    """The experts of a model. Threads may call at the same time: a host with several devices has one for each."""

    def alive(self, layer: int) -> Tensor:
        """Which cells of a layer can be asked: bool [rows, columns] on the CPU."""
        ...

    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        """Ask experts, each for its tokens: float32 [tokens, width] on the CPU, which nobody changes afterwards.

        Who fails is left out; nothing is raised for it.

        :param keep: does a backward call follow? `current_microbatch()` says then what its gradients count for
        """
        ...

    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> Mapping[Cell, Tensor]:
        """Give those who answered the gradients of their outputs; returns those of their inputs.

        They are of the mean loss over the microbatch. Who fails is left out, which counts as zero.
        """
        ...


@dataclass(frozen=True)
class Microbatch:
    """What gradients count for.

    :ivar step: the global step that they are to be part of; the first one is 1
    :ivar samples: that the loss is the mean of
    """

    step: int
    samples: int


_current: ContextVar[Microbatch | None] = ContextVar("microbatch", default=None)


@contextmanager
def counting(microbatch: Microbatch) -> Iterator[None]:
    """Forward calls of this thread meanwhile are of this microbatch, and so are the backward calls that they lead to.

    Gradients of calls outside of it, such as those of a trial, are added to nothing.
    """
    token = _current.set(microbatch)
    try:
        yield
    finally:
        _current.reset(token)


def current_microbatch() -> Microbatch | None:
    """What a forward call of this thread is part of."""
    return _current.get()
