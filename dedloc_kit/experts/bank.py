"""The experts of some cells, held in this process."""

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.experts.calls import Answers, Cell, ExpertName, Microbatch, Ticket, current_microbatch
from dedloc_kit.experts.expert import Expert, Pinned, Sum
from dedloc_kit.experts.kept import Kept
from dedloc_kit.experts.network import Network
from dedloc_kit.experts.refused import Refused
from dedloc_kit.experts.usual import Usual
from dedloc_kit.learning.train.flat import Room
from dedloc_kit.learning.train.state.checkpoint import is_finite

KEPT_SECONDS = 120.0
"""A backward call that has not come by then does not come."""
ROOM = 2**28
"""Bytes for the inputs of forward calls."""


@dataclass(frozen=True, eq=False)
class _Call:
    """A forward call, kept for its backward call."""

    name: ExpertName
    inputs: Tensor
    microbatch: Microbatch | None


def names_of(settings: ExpertsConfig) -> list[ExpertName]:
    """All experts of a run."""
    rows, columns = settings.grid
    return [
        ExpertName(layer, row, column) for layer in settings.layers for row in range(rows) for column in range(columns)
    ]


class Bank:
    """Some experts of a run; in the process of a trainer it is all that a model needs (`calls.Experts`).

    Whoever is answered for others calls `answer` and `learn`, which raise Refused for what cannot be right. No call
    changes an expert before `take`, and a refused one changes nothing at all.

    :param room: bytes for the inputs of forward calls
    :param remembers: whether experts are had as they were before their last step, too
    :ivar experts_room: where the experts lie, and copies of them
    :ivar refused: calls by what was wrong with them
    """

    def __init__(
        self, run: RunConfig, room: int = ROOM, remembers: bool = False, experts_room: Room = torch.zeros
    ) -> None:
        assert run.experts is not None, "a run without experts has no bank"
        self._run, self._settings, self._remembers = run, run.experts, remembers
        self.experts_room = experts_room
        self._experts: dict[ExpertName, Expert] = {}
        self._kept = Kept[_Call](room, KEPT_SECONDS)
        self._usual = {layer: Usual() for layer in self._settings.layers}
        self._usual_own = defaultdict[ExpertName, Usual](Usual)
        """How large the gradients of an expert's parameters are, as means over samples."""
        self._lock, self._trying = threading.Lock(), threading.Lock()
        self.refused: Counter[str] = Counter()

    @property
    def names(self) -> list[ExpertName]:
        """The experts that are here."""
        with self._lock:
            return sorted(self._experts)

    def steps(self, names: Iterable[ExpertName]) -> list[int]:
        """The finished global steps whose parameters those of these have that are here."""
        with self._lock:
            return [self._experts[name].step for name in names if name in self._experts]

    def hold(self, names: Iterable[ExpertName]) -> None:
        """Have these experts, too, with their first weights: the same ones on every host. They are made one after the
        other, so that no more than one takes memory if they lie on the disk. Raises ValueError for a name that the run
        does not have."""
        for name in names:
            self._add(name, self._first(name, self.experts_room, self._remembers))

    def _first(self, name: ExpertName, room: Room = torch.zeros, remembers: bool = False) -> Expert:
        rows, columns = self._settings.grid
        if name.layer not in self._settings.layers or not (0 <= name.row < rows and 0 <= name.column < columns):
            raise ValueError(f"the run has no expert {name}")
        seed = seed_of(self._run.run_id, "expert", name)
        network = Network(self._settings.width, self._settings.hidden, seed)
        return Expert(network, self._run.optimizer, remembers, room)

    def _add(self, name: ExpertName, expert: Expert) -> None:
        with self._lock:
            self._experts.setdefault(name, expert)

    def hold_all(self) -> None:
        """Have all experts of the run."""
        self.hold(names_of(self._settings))

    def drop(self, name: ExpertName) -> None:
        """Have this expert no longer."""
        with self._lock:
            self._experts.pop(name, None)

    def alive(self, layer: int) -> Tensor:
        cells = torch.zeros(self._settings.grid, dtype=torch.bool)
        for name in self.names:
            if name.layer == layer:
                cells[name.cell] = True
        return cells

    def forward(self, layer: int, inputs: Mapping[Cell, Tensor], keep: bool) -> Answers:
        outputs, tickets = {}, {}
        microbatch = current_microbatch()
        for cell, given in inputs.items():
            name = ExpertName(layer, *cell)
            with suppress(Refused):
                outputs[cell] = self.output(name, given)
                if keep:
                    tickets[cell] = self.keep(name, given, microbatch)
        return Answers(outputs, tickets if keep else None)

    def backward(self, layer: int, ticket: Ticket, gradients: Mapping[Cell, Tensor]) -> dict[Cell, Tensor]:
        assert isinstance(ticket, dict)
        of_inputs = {}
        for cell, gradient in gradients.items():
            with suppress(Refused):
                of_inputs[cell] = self.learn(ticket.get(cell), gradient)
        return of_inputs

    def output(self, name: ExpertName, inputs: Tensor) -> Tensor:
        """What an expert makes of tokens, float32 [tokens, width] on the CPU; raises Refused."""
        with self._counted():
            fits = inputs.ndim == 2 and inputs.shape[1] == self._settings.width and inputs.dtype == torch.float32
            if not fits or not len(inputs):
                raise Refused("shape")
            made = self._expert(name).output(inputs)
            if not is_finite(made):  # then the inputs were not, or are so large that nothing can be learned from them
                raise Refused("not finite")
            return made

    def keep(self, name: ExpertName, inputs: Tensor, microbatch: Microbatch | None, sender: str = "") -> int:
        """Keep the inputs of a forward call for its backward call, whose gradients count for a microbatch, or for
        nothing; returns a ticket. Raises Refused."""
        with self._counted(), self._lock:
            if microbatch is not None and not 1 <= microbatch.samples <= self._run.peer_batch:
                raise Refused("samples")
            return self._kept.put(sender, _Call(name, inputs.detach(), microbatch), inputs.nbytes)

    def learn(self, ticket: object, gradient: Tensor, sender: str = "") -> Tensor:
        """Take the gradient of an output, as large as that, and add what follows from it to what the expert is told for
        its microbatch's global step; returns the gradient of the inputs. A ticket is good for one call of the sender
        whom it was made for. Raises Refused."""
        with self._counted():
            with self._lock:
                call = self._kept.take(sender, ticket)
            if gradient.shape != call.inputs.shape or gradient.dtype != torch.float32:
                raise Refused("shape")
            expert = self._expert(call.name)
            size = float(gradient.norm()) / math.sqrt(len(gradient))
            if call.microbatch is not None:
                expert.check(call.microbatch.step)
                size *= call.microbatch.samples  # the mean over more samples has smaller gradients
            if not math.isfinite(size):
                raise Refused("not finite")
            if call.microbatch is not None:
                with self._lock:
                    if self._usual[call.name.layer].absurd(sender, size):
                        raise Refused("absurd")
            of_inputs, own = expert.gradients(call.inputs, gradient)
            if not all(map(is_finite, (of_inputs, *own))):
                raise Refused("not finite")
            if call.microbatch is not None:
                with self._lock:
                    self._usual_own[call.name].absurd(sender, math.hypot(*(float(each.norm()) for each in own)))
                expert.add(own, call.microbatch.step, call.microbatch.samples)
            return of_inputs

    def take(self, step: int, samples: int, rate: float) -> list[ExpertName]:
        """Let experts take a global step, each over the weighted mean of what it was told.

        :param step: the first one is 1
        :param samples: of all trainers in that step, whichever experts they called
        :param rate: the learning rate that the trunk has in it
        :return: who took it: experts that lack an earlier step do not, nor do those who have it already
        """
        return [name for name in self.names if self.take_one(name, step, samples, rate)]

    def take_one(
        self,
        name: ExpertName,
        step: int,
        samples: int,
        rate: float,
        said: Callable[[Tensor], Tensor] = lambda mean: mean,
    ) -> bool:
        """The same of one of them.

        :param said: what becomes of the mean where others are told of it
        """
        return self._expert(name).take(step, samples, rate, said)

    def follow(self, name: ExpertName, step: int, mean: Tensor, rate: float) -> None:
        """Let an expert take the same step as another copy of it; raises ValueError if that is not its next one."""
        self._expert(name).follow(step, mean, rate)

    def is_owed(self) -> bool:
        """Is there a forward call whose backward call has not come, or a gradient that no step was taken with?"""
        with self._lock:
            return self._kept.size > 0 or any(expert.is_told for expert in self._experts.values())

    def take_sums(self, name: ExpertName) -> dict[int, Sum]:
        """As `Expert.take_sums`."""
        return self._expert(name).take_sums()

    def add_sums(self, name: ExpertName, sums: Mapping[int, Sum], sender: str = "") -> None:
        """Tell an expert what another copy of it was told: of a global batch at most for each step, with all that other
        copies of it have been told. Raises Refused, and adds nothing, if it is not here, or a mean over samples is far
        larger than usual."""
        with self._counted():
            expert = self._expert(name)
            sizes = [float(torch.linalg.vector_norm(total, dtype=torch.float64)) / n for total, n in sums.values()]
            with self._lock:
                usual = self._usual_own[name]
                if not all(map(math.isfinite, sizes)):
                    raise Refused("absurd")
                absurd = [usual.absurd(sender, size) for size in sizes]  # each is remembered
                if any(absurd):
                    raise Refused("absurd")
            expert.add_sums(sums, self._run.global_batch)

    def state(self, name: ExpertName) -> tuple[dict[str, Tensor], int]:
        """A consistent copy of an expert's tensors, and the step that they are of; raises Refused if it is not here."""
        return self._expert(name).copy()

    def pin(self, name: ExpertName, step: int) -> Pinned:
        """As `Expert.pin`; raises Refused if it is not here."""
        return self._expert(name).pin(step)

    def load(self, name: ExpertName, tensors: Mapping[str, Tensor], step: int) -> None:
        """Hold an expert as it was after a global step; raises ValueError if that cannot be one."""
        with self._lock:
            expert = self._experts.get(name)
        if expert is None:  # nobody is answered by its first weights meanwhile
            expert = self._first(name, self.experts_room, self._remembers)
            expert.load(tensors, step)
            self._add(name, expert)
        else:
            expert.load(tensors, step)

    def check(self, name: ExpertName, tensors: Mapping[str, Tensor]) -> None:
        """Raise ValueError if these are not the tensors of an expert, or not of one that can take a step: what an
        optimizer remembers may be finite and lead to what is not. One at a time: each is tried in memory."""
        with self._trying:
            trial = self._first(name)
            trial.load(tensors, 0)
            trial.take(1, 1, self._run.optimizer.learning_rate)
            trial.check_tensors(trial.tensors())

    def like(self) -> dict[str, Tensor]:
        """Tensors of the shapes and types of any expert's, without numbers."""
        first = self._first(names_of(self._settings)[0])
        return {name: tensor.to("meta") for name, tensor in first.tensors().items()}

    def _expert(self, name: ExpertName) -> Expert:
        with self._lock:
            if name not in self._experts:
                raise Refused("unknown")
            return self._experts[name]

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            with self._lock:
                self.refused[refused.kind] += 1
            raise
