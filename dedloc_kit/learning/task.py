"""What can be learned: the base class of all tasks, and the tasks by name."""

from __future__ import annotations

import difflib
import json
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import ValidationError

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import Section
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.types import (
    WITHOUT,
    Batch,
    Example,
    Feature,
    Loss,
    ParamGroup,
    StageTask,
    Usage,
    VocabularyTransfer,
    Warn,
    rows,
)
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.validation import describe

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from dedloc_kit.learning.data.sources.shards import Shard
    from dedloc_kit.learning.data.tokenizers.tokenizer import Tokenization

__all__ = [
    "TASK_NAMES",
    "Batch",
    "Example",
    "Feature",
    "Loss",
    "ParamGroup",
    "StageTask",
    "Task",
    "Usage",
    "VocabularyTransfer",
    "create_task",
    "parse_options",
    "prepared",
    "rows",
    "task_class",
]

_TASKS = {
    "albert": "dedloc_kit.learning.tasks.albert:Albert",
    "causal": "dedloc_kit.learning.tasks.causal:Causal",
    "chat": "dedloc_kit.learning.tasks.chat:Chat",
    "encoder": "dedloc_kit.learning.tasks.encoder:Encoder",
    "span-corruption": "dedloc_kit.learning.tasks.span_corruption:SpanCorruption",
    "swav": "dedloc_kit.learning.tasks.swav:Swav",
    "text-to-image": "dedloc_kit.learning.tasks.text_to_image:TextToImage",
}

TASK_NAMES = tuple(_TASKS)
"""Of the tasks that are built in."""

Options = TypeVar("Options", bound=Section)
_logger = logging.getLogger(__name__)


class Task(ABC):
    """What a run learns, made from the run's configuration alone, so that all peers have the same.

    A task gives the abstract methods. What stands below `unsupported` belongs to a feature each, and is called only of
    a task that has nothing against that feature. Raises UserError if the run's options are wrong.
    """

    Options: ClassVar[type[Section]]
    """The keys of `task` in run.toml, beside its name."""
    special_tokens: ClassVar[Mapping[str, str]] = {}
    """What its tokenizer needs: names of transformers' tokenizers, and how a new one spells them."""
    tokenization: ClassVar[Tokenization] = "bpe"
    """How a tokenizer is made for it where run.toml does not say."""
    own_records: ClassVar[bool] = False
    """Whether its records are neither texts nor pictures, so that only its own `read` understands the data."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.options: Any = parse_options(run, self.Options)
        self.__held_out: dict[int, list[Example]] = {}

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

    def batches(self, microbatch: int, seed: int, warn: Warn) -> Iterator[Batch] | None:
        """Batches that a task makes without the run's data, without end; `seed` decides what they hold.

        None: they are made of records, by `read`, `examples` and `collate`.
        """
        return None

    def read(self, source: Source, shard: Shard, warn: Warn) -> Iterator[Any]:
        """The records of a shard, as `data.sources.shards.Reader`; texts, unless a task reads something else."""
        from dedloc_kit.learning.data.sources.stream import texts

        return texts(source, shard, warn)

    def examples(self, records: Iterable[Any], rng: np.random.Generator) -> Iterator[Example]:
        """The samples that records make; these and `rng` decide everything, and no device is at hand.

        What numpy does faster for many samples together is done for groups of a fixed size (`rows`), so that a sample
        is the same whatever the microbatch.
        """
        raise NotImplementedError(f"the task {type(self).__name__} makes no samples of records")

    def collate(self, examples: Sequence[Example]) -> Batch:
        """Some samples as a batch, on the CPU: by default each array stacked by its name."""
        import numpy as np
        import torch

        batch = {}
        for name, first in examples[0].items():
            values = [each[name] for each in examples]
            # What np.stack does is this with twice the calls.
            stacked = np.concatenate(values).reshape(len(values), *first.shape) if first.ndim else np.array(values)
            batch[name] = torch.from_numpy(stacked)
        return batch

    def batches_of(self, records: Iterable[Any], microbatch: int, seed: int) -> Iterator[Batch]:
        """A block's records as batches of `microbatch` samples, the last one of fewer; `seed` decides what is drawn."""
        import numpy as np

        examples = self.examples(records, np.random.default_rng(seed_of(seed, "examples")))
        while some := list(islice(examples, microbatch)):
            yield self.collate(some)

    def prepare(self, batch: Batch) -> Batch:
        """The batch, on the CPU, with what its loss would have to look up, so that a GPU is never waited for.

        What is found may be of any length, so a batch is divided before it is prepared. The first tensor still has the
        samples as its first dimension.
        """
        return batch

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch, step: int) -> Loss:
        """The loss over a prepared batch that is on the model's device. However a batch is divided, the sums of its
        parts are its sum: a further term has a factor that the run fixes, such as the labels expected of a sample.

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
        :param repository: where users find it: the Hub's `OWNER/NAME`, or a folder such as `./bengali`
        """
        return None

    def held_out(self) -> tuple[Source, Iterator[Any]]:
        """The run's held-out data and its records, each once, the same on every machine.

        Raises UserError if the run has none.
        """
        from dedloc_kit.learning.data.sources.stream import in_order

        source = self.run.data.evaluation
        if source is None:
            raise UserError("the run has no held-out data to evaluate on; add [data.evaluation] to its run.toml")
        return source, in_order(source, self.read, warn=_logger.warning)

    def held_out_examples(self, count: int) -> list[Example]:
        """The first so many samples of the held-out data, always the same, read once; UserError if there is not one."""
        import numpy as np

        if count not in self.__held_out:
            source, records = self.held_out()
            rng = np.random.default_rng(seed_of(self.run.seed, "evaluation"))
            self.__held_out[count] = list(islice(self.examples(records, rng), count))
            if not self.__held_out[count]:
                raise UserError(f"{source.dataset} holds less than one sample; choose other held-out data")
        return self.__held_out[count]

    def unsupported(self, feature: Feature) -> str:
        """Why the run cannot have a feature with this task, in one line with the fix; empty if it can."""
        return _without(self, feature)

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
        raise NotImplementedError(_without(self, "pipeline"))

    def whole(self, stages: Sequence[nn.Module]) -> nn.Module:
        """The model that all stages are, which shares their tensors."""
        raise NotImplementedError(_without(self, "pipeline"))

    # distributed_eval

    def held_out_batches(self) -> Sequence[Batch]:
        """What the evaluation is a mean over, always the same; raises UserError if the run has none."""
        raise NotImplementedError(_without(self, "distributed_eval"))

    def weight(self, batch: Batch) -> float:
        """What some rows of such a batch count in the mean loss; of 0 they have none."""
        raise NotImplementedError(_without(self, "distributed_eval"))

    def evaluation_of(self, loss: float) -> Evaluation:
        """What `evaluate` says of a model with this mean loss, as far as it follows from that."""
        raise NotImplementedError(_without(self, "distributed_eval"))

    # to_transformers

    def to_transformers(self, model: nn.Module, folder: Path) -> nn.Module:
        """The model as an architecture of transformers has it, with the experts that are connected to it (`Frozen`
        ones), on the disk of this folder; raises UserError if it does not tell the same."""
        raise NotImplementedError(_without(self, "to_transformers"))

    # probe

    neighbours: int
    """How many vote on a class."""

    def labelled(self, held_out: bool) -> Iterator[tuple[torch.Tensor, list[str]]]:
        """Batches of samples, those that the run trains on or held-out ones, each once, with the names of classes.

        Raises UserError if the data has no classes.
        """
        raise NotImplementedError(_without(self, "probe"))

    def features(self, model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        """What makes features, [samples, width], of such a batch with a model, on the device of the model."""
        raise NotImplementedError(_without(self, "probe"))

    def bare_features(self, samples: torch.Tensor) -> torch.Tensor:
        """What such a batch is without any model, such as its pixels: float [samples, width]."""
        raise NotImplementedError(_without(self, "probe"))


def _without(task: Task, feature: Feature) -> str:
    return f"the task {type(task).__name__} {WITHOUT[feature]}"


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
