"""What can be learned. A task is the same object for every role: model, batches, loss, evaluation."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from dedloc_kit.errors import UserError
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.task import Source

if TYPE_CHECKING:
    import torch

Batch: TypeAlias = "dict[str, torch.Tensor]"
"""Tensors by name; the first dimension of each is the samples."""

_TASKS = {
    "albert": "dedloc_kit.learning.tasks.albert:Albert",
    "causal": "dedloc_kit.learning.tasks.causal:Causal",
    "encoder": "dedloc_kit.learning.tasks.encoder:Encoder",
    "swav": "dedloc_kit.learning.tasks.swav:Swav",
    "text-to-image": "dedloc_kit.learning.tasks.text_to_image:TextToImage",
}


class Task(Protocol):
    """One task, made from a run's configuration alone, so that all peers have the same."""

    def model(self) -> torch.nn.Module:
        """The untrained model on the CPU, the same weights on every peer; the global random state is left alone."""
        ...

    def groups(self, model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """All trained parameters for an optimizer, each once, in an order that is the same on every peer."""
        ...

    def batches(self, microbatch: int, seed: int, warn: Callable[[str], None]) -> Iterator[Batch]:
        """Batches of `microbatch` samples on the CPU, without end, in an order that `seed` decides."""
        ...

    def prepare(self, batch: Batch) -> Batch:
        """The batch, on the CPU, with what its loss would have to look up, so that a GPU is never waited for.

        What is found may be of any length, so a batch is divided before it is prepared. The first tensor still has the
        samples as its first dimension.
        """
        ...

    def loss(self, model: torch.nn.Module, batch: Batch, step: int) -> torch.Tensor:
        """The mean loss over a prepared batch that is on the model's device: a scalar with a gradient.

        :param step: the finished global steps whose parameters the model holds. What changes in the course of a run
            follows it, so that all peers agree; it makes a jump when a peer has caught up.
        """
        ...

    def evaluate(self, model: torch.nn.Module) -> Evaluation:
        """What the model can do with held-out samples that never change; raises UserError if the run has none."""
        ...


@runtime_checkable
class Checkable(Task, Protocol):
    """A task whose gradients others can compute again, unless its settings are against it.

    Its loss depends on the parameters, the batch and the step alone, and its batches on what was read and a seed.
    """

    @property
    def unchecked(self) -> str:
        """What in the run's settings is against it, with the fix; empty if nothing is."""
        ...

    def read(self, source: Source, shard: Any, warn: Callable[[str], None]) -> Iterator[Any]:
        """What the task can use of a shard (`data.sources.stream.Reader`)."""
        ...

    def batches_of(self, items: Iterable[Any], microbatch: int, seed: int) -> Iterator[Batch]:
        """What was read as batches of `microbatch` samples, the last one of fewer; `seed` decides the rest."""
        ...


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

    def model(self) -> torch.nn.Module:
        """This stage alone, untrained, on the CPU, the same weights on every peer; the other stages are never held."""
        ...

    def outline(self) -> torch.nn.Module:
        """The same on the `meta` device: shapes alone, with next to no memory."""
        ...

    def groups(self, model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        """As `Task.groups`."""
        ...

    def check(self, batch: Batch) -> None:
        """Raises ValueError for tensors that can be of no batch: of other types or shapes, or out of range."""
        ...

    def forward(self, model: torch.nn.Module, hidden: torch.Tensor | None, batch: Batch) -> torch.Tensor:
        """Hidden states after this stage, float32 [rows, tokens, width]; of the last one the mean loss of the rows.

        :param hidden: those after the stage before; none for the first
        :param batch: what `takes` names
        """
        ...


@runtime_checkable
class Divisible(Task, Protocol):
    """A task whose model can be cut into the stages of a pipeline, unless its settings are against it."""

    def why_undivided(self) -> str:
        """What in the run's settings is against it, with the fix; empty if nothing is."""
        ...

    @property
    def sample_tokens(self) -> int:
        """Of a sample, at most."""
        ...

    def stage(self, number: int) -> StageTask: ...

    def whole(self, stages: Sequence[torch.nn.Module]) -> torch.nn.Module:
        """The model that all stages are, which shares their tensors."""
        ...


@runtime_checkable
class MeasuredInParts(Protocol):
    """A divisible task whose `evaluate` is a mean over held-out batches, so that others can compute it in parts."""

    def held_out_batches(self) -> Sequence[Batch]:
        """Always the same; raises UserError if the run has none."""
        ...

    def weight(self, batch: Batch) -> float:
        """What some rows of such a batch count in the mean loss; of 0 they have none."""
        ...

    def evaluation_of(self, loss: float) -> Evaluation:
        """What `evaluate` says of a model with this mean loss, as far as it follows from that."""
        ...


@runtime_checkable
class Mixed(Task, Protocol):
    """A task whose model can have experts (`experts.mixture.Mixture`), unless its settings are against it."""

    def why_without_experts(self) -> str:
        """What in the run's settings is against it, with the fix; empty if nothing is."""
        ...

    def why_unwritten(self) -> str:
        """Why no architecture of a library is such a model with experts, with the fix; empty if there is one."""
        ...

    def to_transformers(self, model: torch.nn.Module, folder: Path) -> torch.nn.Module:
        """The model as that architecture has it, with the experts that are connected to it (`Frozen` ones), on the disk
        of this folder; raises UserError if it does not tell the same."""
        ...


def prepared(task: Task, batch: Batch, device: torch.device) -> Batch:
    """A batch from the CPU as the task's loss takes it, on a device."""
    return {name: values.to(device) for name, values in task.prepare(batch).items()}


def why_unchecked(task: Task) -> str:
    """Why the gradients of a task cannot be computed again, in one line; empty if they can."""
    if isinstance(task, Checkable):
        return task.unchecked
    return f"the task {type(task).__name__} does not promise that its loss depends on parameters, batch and step alone"


def why_undivided(task: Task) -> str:
    """Why a task's model cannot be cut into stages, in one line; empty if it can."""
    if isinstance(task, Divisible):
        return task.why_undivided()
    return f"the task {type(task).__name__} does not say how its model is cut into stages"


def why_without_experts(task: Task) -> str:
    """Why a task's model cannot have experts, in one line; empty if it can."""
    if isinstance(task, Mixed):
        return task.why_without_experts()
    return f"the task {type(task).__name__} has no layers for them; remove them"


@dataclass(frozen=True)
class Usage:
    """How to use an exported model, for its model card."""

    library: str
    """As the Hub calls it, such as `transformers`."""
    pipeline: str
    """The Hub's name of what the model does, such as `fill-mask`."""
    code: str
    """A few lines of Python that work as they are."""


@runtime_checkable
class Exportable(Protocol):
    """A task whose model people can use without dedloc_kit. Of other tasks only the training state is published."""

    def export(self, model: torch.nn.Module, folder: Path, repository: str) -> Usage:
        """Write the model, in safetensors, and all that it needs to an existing folder.

        :param model: on the CPU, its parameters not shared with anything
        :param repository: the Hub repository `OWNER/NAME` that the folder is pushed to
        """
        ...


@runtime_checkable
class Probeable(Protocol):
    """A task whose model makes features of samples: `dedloc evaluate` scores what these know of their classes."""

    neighbours: int
    """How many vote on a class."""

    def labelled(self, held_out: bool) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Batches of samples, those that the run trains on or held-out ones, each once, with the names of classes.

        Raises UserError if the data has no classes.
        """
        ...

    def features(self, model: torch.nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes features, [samples, width], of such a batch with a model, on the device of the model."""
        ...

    def bare_features(self, samples: torch.Tensor) -> torch.Tensor:
        """What such a batch is without any model, such as its pixels: float [samples, width]."""
        ...


@dataclass(frozen=True)
class VocabularyTransfer:
    """What a new vocabulary is made of that goes on with the weights of an old one, in tokens."""

    copied: int
    averaged: int
    drawn: int


@runtime_checkable
class Continuing(Task, Protocol):
    """A task whose runs may go on from a model that exists."""

    def first_model(self) -> torch.nn.Module:
        """The model that the run begins with: as `model`, with the weights that it goes on from if it does.

        Only the coordinator has to have them, at the run's beginning. Raises UserError with the fix if they are not
        there or not of this model.
        """
        ...

    def vocabulary_transfer(self) -> VocabularyTransfer | None:
        """What the run's vocabulary is made of, if it goes on from a model; none otherwise. Raises UserError."""
        ...

    def start_loss(self) -> float | None:
        """The held-out loss, in the run's tokens, of the model that it goes on from, as that was published.

        None if it goes on from none, or if two vocabularies do not compare. Raises UserError if it is not there.
        """
        ...


def first_model(task: Task) -> torch.nn.Module:
    """The model that a run begins with."""
    return task.first_model() if isinstance(task, Continuing) else task.model()


def create_task(run: RunConfig, module: str | None = None) -> Task:
    """The task that a run names; raises UserError if there is none of that name, if its options are wrong, or if the
    run wants checks, stages or experts that it cannot give.

    `module` is a Python module on this machine whose `TASKS` (name to class) are known too: the volunteer chooses
    it, never the network. It is found where other modules are, and last in the current folder: a volunteer that names
    a module vouches for what lies beside it, but nothing there may hide a library.
    """
    tasks: dict[str, Callable[[RunConfig], Task]] = {name: partial(_load, path) for name, path in _TASKS.items()}
    if module is not None:
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)
        try:
            tasks |= import_module(module).TASKS
        except (ImportError, AttributeError) as error:
            raise UserError(f"the task module '{module}' cannot be used ({error}); check --task-module") from None
    if run.task.name not in tasks:
        nearest = difflib.get_close_matches(run.task.name, tasks, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"choose one of: {', '.join(sorted(tasks))}"
        raise UserError(f"there is no task '{run.task.name}'; {hint}")
    task = tasks[run.task.name](run)
    if run.trust.checks == "on" and (against := why_unchecked(task)):
        raise UserError(f'trust.checks = "on" is not possible: {against}; or remove trust.checks')
    if run.pipeline is not None and (against := why_undivided(task)):
        raise UserError(f"[pipeline] is not possible: {against}")
    if run.experts is not None and (against := why_without_experts(task)):
        raise UserError(f"[experts] are not possible: {against}")
    return task


def _load(path: str, run: RunConfig) -> Task:
    module, name = path.split(":")
    return cast(Task, getattr(import_module(module), name)(run))
