"""What can be learned: the base class of all tasks, and the tasks by name."""

from __future__ import annotations

import difflib
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

from pydantic import ValidationError

from dedloc_kit.errors import UserError
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.section import Section
from dedloc_kit.run.seeds import seed_of
from dedloc_kit.run.task import Source
from dedloc_kit.validation import describe

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dedloc_kit.learning.data.sources.shards import Shard

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
_WITHOUT: Mapping[Feature, str] = {
    "checks": "does not promise that its loss depends on parameters, batch and step alone",
    "pipeline": "does not say how its model is cut into stages",
    "distributed_eval": "does not say which held-out batches its evaluation is a mean over",
    "experts": "has no layers for them; remove them",
    "to_transformers": "knows no architecture of transformers that is its model with experts",
    "init_from": "begins with no published model",
    "probe": "makes no features of samples",
}

_TASKS = {
    "albert": "dedloc_kit.learning.tasks.albert:Albert",
    "causal": "dedloc_kit.learning.tasks.causal:Causal",
    "encoder": "dedloc_kit.learning.tasks.encoder:Encoder",
    "swav": "dedloc_kit.learning.tasks.swav:Swav",
    "text-to-image": "dedloc_kit.learning.tasks.text_to_image:TextToImage",
}

Options = TypeVar("Options", bound=Section)


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


class Task(ABC):
    """What a run learns, made from the run's configuration alone, so that all peers have the same.

    A task gives the abstract methods. What stands below `unsupported` belongs to a feature each, and is called only of
    a task that has nothing against that feature. Raises UserError if the run's options are wrong.
    """

    Options: ClassVar[type[Section]]
    """The keys of `task` in run.toml, beside its name."""
    special_tokens: ClassVar[Mapping[str, str]] = {}
    """What its tokenizer needs: names of transformers' tokenizers, and how a new one spells them."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.options: Any = parse_options(run, self.Options)

    @abstractmethod
    def model(self) -> nn.Module:
        """The untrained model on the CPU, the same weights on every peer; the global random state is left alone."""

    @contextmanager
    def seeded_weights(self) -> Iterator[None]:
        """Weights that are drawn within are the run's; the global random state is left alone."""
        import torch

        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed the GPU as well, whose state fork_rng does not hold here.
            torch.default_generator.manual_seed(seed_of(self.run.run_id, "weights"))
            yield

    def groups(self, model: nn.Module) -> list[ParamGroup]:
        """All trained parameters, each once, in an order that is the same on every peer.

        Biases and the scales of normalisations, which have one dimension, do not decay.
        """
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        decay = self.run.optimizer.weight_decay
        return [
            {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": decay},
            {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
        ]

    def batches(self, microbatch: int, seed: int, warn: Warn) -> Iterator[Batch]:
        """Batches of `microbatch` samples on the CPU, without end, in an order that `seed` decides."""
        from dedloc_kit.learning.data.sources.stream import mixture

        data = self.run.data
        records = mixture(data.train, self.read, seed=seed, shuffle_buffer=data.shuffle_buffer, warn=warn)
        return self.batches_of(records, microbatch, seed)

    def read(self, source: Source, shard: Shard, warn: Warn) -> Iterator[Any]:
        """The records of a shard, as `data.sources.stream.Reader`; texts, unless a task reads something else."""
        from dedloc_kit.learning.data.sources.stream import texts

        return texts(source, shard, warn)

    def batches_of(self, items: Iterable[Any], microbatch: int, seed: int) -> Iterator[Batch]:
        """What was read as batches of `microbatch` samples, the last one of fewer; `seed` decides the rest."""
        raise NotImplementedError

    def prepare(self, batch: Batch) -> Batch:
        """The batch, on the CPU, with what its loss would have to look up, so that a GPU is never waited for.

        What is found may be of any length, so a batch is divided before it is prepared. The first tensor still has the
        samples as its first dimension.
        """
        return batch

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, step: int) -> torch.Tensor:
        """The mean loss over a prepared batch that is on the model's device: a scalar with a gradient.

        :param step: the finished global steps whose parameters the model holds. What changes in the course of a run
            follows it, so that all peers agree; it makes a jump when a peer has caught up.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> Evaluation:
        """What the model can do with held-out samples that never change; raises UserError if the run has none."""

    def export(self, model: nn.Module, folder: Path, repository: str) -> Usage | None:
        """Write the model, in safetensors, and all that people need to use it without dedloc_kit to an existing folder.

        None if that cannot be: then the training state alone is published.

        :param model: on the CPU, its parameters not shared with anything
        :param repository: the Hub repository `OWNER/NAME` that the folder is pushed to
        """
        return None

    def unsupported(self, feature: Feature) -> str:
        """Why the run cannot have a feature with this task, in one line with the fix; empty if it can."""
        return self._without(feature)

    def _without(self, feature: Feature) -> str:
        return f"the task {type(self).__name__} {_WITHOUT[feature]}"

    # init_from

    def first_model(self) -> nn.Module:
        """The model that the run begins with: as `model`, with the weights that it goes on from if it does.

        Only the coordinator has to have them, at the run's beginning. Raises UserError with the fix if they are not
        there or not of this model.
        """
        return self.model()

    def vocabulary_transfer(self) -> VocabularyTransfer | None:
        """How the run's vocabulary comes from that of the model it goes on from; none without one. Raises UserError."""
        return None

    def start_loss(self) -> float | None:
        """The held-out loss, in the run's tokens, of the model that it goes on from, as that was published.

        None if it goes on from none, or if two vocabularies do not compare. Raises UserError if it is not there.
        """
        return None

    # pipeline

    sample_tokens: int
    """Of a sample, at most."""

    def stage(self, number: int) -> StageTask:
        """One stage of the model."""
        raise NotImplementedError(self._without("pipeline"))

    def whole(self, stages: Sequence[nn.Module]) -> nn.Module:
        """The model that all stages are, which shares their tensors."""
        raise NotImplementedError(self._without("pipeline"))

    # distributed_eval

    def held_out_batches(self) -> Sequence[Batch]:
        """What the evaluation is a mean over, always the same; raises UserError if the run has none."""
        raise NotImplementedError(self._without("distributed_eval"))

    def weight(self, batch: Batch) -> float:
        """What some rows of such a batch count in the mean loss; of 0 they have none."""
        raise NotImplementedError(self._without("distributed_eval"))

    def evaluation_of(self, loss: float) -> Evaluation:
        """What `evaluate` says of a model with this mean loss, as far as it follows from that."""
        raise NotImplementedError(self._without("distributed_eval"))

    # to_transformers

    def to_transformers(self, model: nn.Module, folder: Path) -> nn.Module:
        """The model as an architecture of transformers has it, with the experts that are connected to it (`Frozen`
        ones), on the disk of this folder; raises UserError if it does not tell the same."""
        raise NotImplementedError(self._without("to_transformers"))

    # probe

    neighbours: int
    """How many vote on a class."""

    def labelled(self, held_out: bool) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Batches of samples, those that the run trains on or held-out ones, each once, with the names of classes.

        Raises UserError if the data has no classes.
        """
        raise NotImplementedError(self._without("probe"))

    def features(self, model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes features, [samples, width], of such a batch with a model, on the device of the model."""
        raise NotImplementedError(self._without("probe"))

    def bare_features(self, samples: torch.Tensor) -> torch.Tensor:
        """What such a batch is without any model, such as its pixels: float [samples, width]."""
        raise NotImplementedError(self._without("probe"))


def prepared(task: Task, batch: Batch, device: torch.device) -> Batch:
    """A batch from the CPU as the task's loss takes it, on a device."""
    return {name: values.to(device) for name, values in task.prepare(batch).items()}


def parse_options(run: RunConfig, options: type[Options]) -> Options:
    """The run's task options, checked; raises UserError with the key and the fix."""
    try:
        return options.model_validate_json(json.dumps(run.task.options))
    except ValidationError as error:
        raise UserError(f"task.{describe(error, options)}") from None


def create_task(run: RunConfig, module: str | None = None) -> Task:
    """The task that a run names; raises UserError if there is none of that name, if its options are wrong, or if the
    run wants checks, stages or experts that it cannot give.

    :param module: as for `task_class`
    """
    task = task_class(run.task.name, module)(run)
    if run.trust.checks == "on" and (against := task.unsupported("checks")):
        raise UserError(f'trust.checks = "on" is not possible: {against}; or remove trust.checks')
    if run.pipeline is not None and (against := task.unsupported("pipeline")):
        raise UserError(f"[pipeline] is not possible: {against}")
    if run.experts is not None and (against := task.unsupported("experts")):
        raise UserError(f"[experts] are not possible: {against}")
    return task


def task_class(name: str, module: str | None = None) -> type[Task]:
    """The class of the task of this name; raises UserError, with the nearest name, if there is none.

    :param module: a Python module on this machine whose `TASKS` (name to class) are known too: the volunteer chooses
        it, never the network. It is found where other modules are, and last in the current folder: a volunteer that
        names a module vouches for what lies beside it, but nothing there may hide a library.
    """
    own: Mapping[str, type[Task]] = {}
    if module is not None:
        if (here := os.getcwd()) not in sys.path:
            sys.path.append(here)
        try:
            own = import_module(module).TASKS
        except (ImportError, AttributeError) as error:
            raise UserError(f"the task module '{module}' cannot be used ({error}); check --task-module") from None
    if name in own:
        return own[name]
    if name in _TASKS:
        where, kind = _TASKS[name].split(":")
        found: type[Task] = getattr(import_module(where), kind)
        return found
    names = sorted({*_TASKS, *own})
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean '{nearest[0]}'?" if nearest else f"choose one of: {', '.join(names)}"
    raise UserError(f"there is no task '{name}'; {hint}")
