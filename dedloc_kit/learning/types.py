"""Types that tasks and their callers share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

Example: TypeAlias = "dict[str, NDArray[Any]]"
"""One sample: arrays by name."""
Batch: TypeAlias = "dict[str, torch.Tensor]"
"""Tensors by name; the first dimension of each is the samples."""
ParamGroup: TypeAlias = dict[str, Any]
"""Of an optimizer of torch: its parameters, and what is special about them."""
Warn: TypeAlias = Callable[[str], None]

Feature = Literal["checks", "pipeline", "distributed_eval", "experts", "to_transformers", "init_from", "probe"]
"""What a run may want of a task, beyond being trained.

- `checks`: its gradients can be computed again, for its loss depends on parameters, batch and step alone
- `pipeline`: its model can be cut into stages
- `distributed_eval`: its evaluation is a mean over held-out batches, which the peers of a pipeline share
- `experts`: its model has layers that can be mixtures of experts
- `to_transformers`: some architecture of transformers is the same as its model with experts
- `init_from`: its runs may begin with a published model
- `probe`: its model makes features of samples, which know more or less of their classes
"""
WITHOUT: Mapping[Feature, str] = {
    "checks": "does not promise that its loss depends on parameters, batch and step alone",
    "pipeline": "does not say how its model is cut into stages",
    "distributed_eval": "does not say which held-out batches its evaluation is a mean over",
    "experts": "has no layers for them; remove them",
    "to_transformers": "knows no architecture of transformers that is its model with experts",
    "init_from": "begins with no published model",
    "probe": "makes no features of samples",
}


class Loss(NamedTuple):
    """The loss of a batch as a sum and the weight that it is over: sums and weights of batches of any size add up.

    A weight is known on the host, from the shapes of a prepared batch, so that no device is waited for.
    """

    total: torch.Tensor
    """A scalar with a gradient."""
    weight: float
    """Labels, or samples where all have as many of them; 0 if nothing has a label."""

    @classmethod
    def of(cls, mean: torch.Tensor, weight: float) -> Loss:
        """The loss whose mean over this weight is given."""
        return cls(mean * weight, weight)

    @property
    def mean(self) -> torch.Tensor:
        """The loss per unit of weight; 0 if the weight is 0."""
        return self.total / (self.weight or 1.0)


@dataclass(frozen=True)
class Usage:
    """How to use an exported model, for its model card."""

    library: str
    """As the Hub calls it, such as `transformers`."""
    pipeline: str
    """The Hub's name of what the model does, such as `fill-mask`."""
    code: str
    """A few lines of Python that work as they are."""


@dataclass(frozen=True)
class VocabularyTransfer:
    """How many tokens of a new vocabulary have which start, where a run begins with a model of another one."""

    copied: int
    averaged: int
    drawn: int


class StageTask(Protocol):
    """Some consecutive layers of a model, as one part of a run."""

    number: int
    """From 0 on."""
    count: int
    """Of all stages."""
    width: int
    """Channels of what travels from stage to stage."""
    takes: tuple[str, ...]
    """Which tensors of a batch it needs beside hidden states."""
    share: float
    """Of the model's computation; of all stages together it is 1."""

    def model(self) -> nn.Module:
        """This stage alone, untrained, on the CPU, the same weights on every peer; the other stages are never held."""
        ...

    def outline(self) -> nn.Module:
        """The same on the `meta` device: shapes alone, with next to no memory."""
        ...

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        """As `Task.groups`."""
        ...

    def check(self, batch: Batch) -> None:
        """Raises ValueError for tensors that can be of no batch: of other types or shapes, or out of range."""
        ...

    def forward(self, model: nn.Module, hidden: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        """Hidden states after this stage, float32 [rows, tokens, width]; of the last one the mean loss of the rows.

        :param hidden: those after the stage before; none for the first
        :param batch: what `takes` names
        """
        ...


def rows(arrays: Mapping[str, NDArray[Any]]) -> Iterator[Example]:
    """The samples of a group whose arrays were made together, the first dimension of each the samples."""
    names = list(arrays)
    for values in zip(*arrays.values(), strict=True):
        yield dict(zip(names, values, strict=True))
