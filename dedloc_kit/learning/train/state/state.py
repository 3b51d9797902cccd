"""The training state that all peers share."""

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.flat import FlatLayout, Room, placed, shared_zeros
from dedloc_kit.learning.train.optim.portable import norm
from dedloc_kit.learning.train.schedule import learning_rate
from dedloc_kit.learning.train.state.checking import check, in_order
from dedloc_kit.learning.train.state.checkpoint import is_finite
from dedloc_kit.learning.train.state.orders import (
    DECAY_START,
    DECAY_STEPS,
    NOTHING_ORDERED,
    RATE,
    REWOUND,
    begun,
    decay_of,
)
from dedloc_kit.learning.train.state.sketch import alike, sketch
from dedloc_kit.records.orders import Decay
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt

KEPT_ROUNDS = 16
MAX_RECEIPT_BYTES = 8_000_000
"""Receipts are handed over with the tensors: those of 1700 global steps of five peers, or of 200 of forty."""

_SKETCH_NUMBERS = 4


class Position(NamedTuple):
    """A state of the run: peers at the same one took the same steps."""

    step: int
    round: str


START = Position(0, "")


class Stepping(Protocol):
    """An optimizer."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...

    def step(self) -> Any: ...


class SharedOptimizer(Stepping, Protocol):
    """An optimizer whose state exists from its construction on."""

    def state_tensors(self) -> list[Tensor]: ...


class TrainingState:
    """What a newcomer downloads, a checkpoint holds and every complete round changes alike on all peers.

    It lives on the CPU, beside the device that a volunteer trains on, so that a global step can be taken in the
    background while the device goes on.

    :param model: on the CPU; it is taken over, its parameters become parts of one flat vector
    :param room: where all that lies, and copies of it
    """

    def __init__(
        self,
        model: torch.nn.Module,
        make_optimizer: Callable[[torch.nn.Module], SharedOptimizer],
        run: RunConfig,
        room: Room = shared_zeros,
    ) -> None:
        self.model, self.run, self.run_id, self.room = model, run, run.run_id, room
        parameters = list(model.parameters())
        self.layout = FlatLayout.of(parameters)
        # Shared: the process that averages is forked later and would keep a copy of what is overwritten here.
        self.flat = room(self.layout.size)
        # Their memory is not let go before the optimizer has its zeros: new memory that nobody has written to is none
        # yet, and a process that is forked now takes none of it.
        before = [parameter.data for parameter in parameters]
        for parameter, view in zip(parameters, self.layout.views(self.flat), strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self.parameters = parameters
        self.optimizer = make_optimizer(model)
        del before
        if room is not shared_zeros:
            for tensor in self.optimizer.state_tensors():
                tensor.data = placed(tensor, room)
        self.step = 0
        self.rounds: tuple[str, ...] = ()
        self.receipts: tuple[Receipt, ...] = ()
        """Of the latest global steps, for peers who missed them."""
        self.anchor = b""
        """Where the agreement on steps goes on from this state; see `swarm/chain/anchor.py`."""
        self._ordered = {name: tensor.clone() for name, tensor in NOTHING_ORDERED.items()}
        self.decay: Decay | None = None
        """Of the learning rate, once it has begun."""
        # Held while the tensors change, so that a newcomer or a checkpoint never gets half a step.
        self.lock = threading.Lock()
        self._listener: Callable[[], None] = lambda: None
        self._take_sketch()

    def another(
        self, model: torch.nn.Module, make_optimizer: Callable[[torch.nn.Module], SharedOptimizer]
    ) -> "TrainingState":
        """One that has taken no step, in the same room."""
        return type(self)(model, make_optimizer, self.run, self.room)

    def listen(self, listener: Callable[[], None]) -> None:
        """Let somebody be told, in the thread that has changed them, whenever these are other parameters."""
        self._listener = listener

    @property
    def round(self) -> str:
        """The all-reduce that led to this state; empty before the first."""
        return self.rounds[-1] if self.rounds else ""

    @property
    def position(self) -> Position:
        return Position(self.step, self.round)

    @property
    def rate(self) -> float:
        """What the configured learning rate is multiplied with, by the organizer's rewinds."""
        return float(self._ordered[RATE])

    def rate_of(self, step: int) -> float:
        """The learning rate of a global step that has been taken."""
        return learning_rate(self.run.optimizer, step - 1, self.decay) * self.rate

    @property
    def rewound(self) -> int:
        """The newest global step that took over an earlier state; 0 if none did."""
        return int(self._ordered[REWOUND])

    @property
    def info(self) -> StateInfo:
        return StateInfo(run_id=self.run_id, step=self.step, rounds=self.rounds)

    def apply(self, average: Tensor, receipt: Receipt, decay: int = 0) -> None:
        """Take one optimizer step with a flat average; the same bits in, the same bits out, on every peer.

        :param average: float32 [layout.size] on the CPU; what it holds afterwards does not matter
        :param decay: over so many global steps the organizer lets the rate fall, by the order in this receipt; where it
            falls already this changes nothing
        """
        falling = self.decay or begun(self.run.optimizer, decay, receipt.step)
        if self.run.averaging.mode == "global-batch":
            scale = self.run.optimizer.max_grad_norm / (norm(average.numpy()) + 1e-6)
            if scale < 1.0:
                average.mul_(scale)
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * learning_rate(self.run.optimizer, self.step, falling)
        with self.lock:
            for parameter, view in zip(self.parameters, self.layout.views(average), strict=True):
                parameter.grad = view
            self.optimizer.step()
            for parameter in self.parameters:
                parameter.grad = None
            if falling is not None:
                self._ordered[DECAY_START].fill_(falling.start)
                self._ordered[DECAY_STEPS].fill_(falling.steps)
            self.decay = falling
            self._count(receipt)
            self._take_sketch()
        self._listener()

    def go_on_from(self, link: str, anchor: bytes) -> None:
        """Nothing of the state changes, but the agreement goes on from this link."""
        with self.lock:
            if link != self.round:
                self.rounds = (*self.rounds, link)[-KEPT_ROUNDS:]
            self.anchor = anchor

    def _count(self, receipt: Receipt) -> None:
        self.step = receipt.step
        self.rounds = (*self.rounds, receipt.round)[-KEPT_ROUNDS:]
        self.receipts = _latest(*self.receipts, receipt)

    def differs(self, sketch: Sequence[float]) -> bool:
        """Does this sketch belong to other parameters than ours?"""
        return not alike(self.sketch, sketch)

    def _take_sketch(self) -> None:
        """Under the lock: whoever takes over a step takes over its sketch."""
        (numbers,) = sketch([self.flat], f"{self.run_id} sketch".encode(), _SKETCH_NUMBERS)
        self.sketch = tuple(numbers) if all(map(math.isfinite, numbers)) else ()
        """Of the parameters; empty if they are not finite: those of a training that has diverged."""

    def tensors(self) -> list[Tensor]:
        """The live tensors, in the order in which they are handed over."""
        return list(self._named().values())

    @property
    def loose(self) -> frozenset[int]:
        """The numbers of the tensors that differ from peer to peer: the model's buffers, which are not averaged."""
        buffers = {f"model.{name}" for name, _ in self.model.named_buffers()}
        return frozenset(number for number, name in enumerate(self._named()) if name in buffers)

    def snapshot(self) -> tuple[torch.nn.Module, Position]:
        """A copy of the model, and what it is of."""
        with self.lock:
            return self.model_copy(), self.position

    def copy(self) -> tuple[dict[str, Tensor], StateInfo]:
        """A consistent copy, by name."""
        with self.lock:
            return {name: placed(tensor, self.room) for name, tensor in self._named().items()}, self.info

    def model_copy(self) -> torch.nn.Module:
        """A model of its own, of the moment; under the lock, or of any."""
        own: dict[int, Any] = {
            id(each): torch.nn.Parameter(placed(each, self.room), each.requires_grad)
            for each in self.model.parameters()
        }
        return copy.deepcopy(self.model, own)  # which takes these for its copies

    @torch.no_grad()
    def model_of(self, tensors: Mapping[str, Tensor], begin: str = "") -> torch.nn.Module:
        """A model of its own with the values of a copy, to be used; one after the other is asked for.

        :param begin: of their names, if they are of more than this state
        """
        model = self.model_copy()  # of any moment: every value is replaced
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            tensor.copy_(tensors[f"{begin}model.{name}"])
        return model.eval()

    @contextmanager
    def for_newcomer(self) -> Iterator[tuple[dict[str, Any], Sequence[Tensor]]]:
        """What is handed over: metadata and the live tensors, which do not change meanwhile."""
        with self.lock, torch.no_grad():
            receipts = [receipt.model_dump() for receipt in self.receipts if receipt.step <= self.step]
            yield {"info": self.info.model_dump(), "receipts": receipts, "anchor": self.anchor}, self.tensors()

    def parameters_copy(self) -> dict[str, Tensor]:
        """A copy of the parameters alone, by their names in the model."""
        with self.lock:
            return {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()}

    @torch.no_grad()
    def begin_with(self, model: torch.nn.Module) -> None:
        """Take over the weights of a model of the same kind before the first step.

        Raises ValueError, and changes nothing, if one of them is not finite.
        """
        theirs = [*model.parameters(), *model.buffers()]
        if not all(map(is_finite, theirs)):
            raise ValueError("its weights hold numbers that are not finite")
        with self.lock:
            for own, other in zip([*self.parameters, *self.model.buffers()], theirs, strict=True):
                own.copy_(other)
            self._take_sketch()
        self._listener()

    def load_named(self, tensors: Mapping[str, Tensor], info: StateInfo) -> None:
        """Take over a state whose tensors are known by name (a checkpoint); errors as `load`."""
        self.load(in_order(self._named(), tensors), info)

    def check_named(self, tensors: Mapping[str, Tensor], info: StateInfo) -> None:
        """Raises ValueError if `load_named` would."""
        self._check(in_order(self._named(), tensors), info)

    def go_back(self, tensors: Mapping[str, Tensor], info: StateInfo, receipt: Receipt, rate: float) -> None:
        """Let a step be one that takes over an earlier state (a checkpoint); errors as `load`.

        :param rate: a factor of the learning rate, on top of what held at that state
        """
        before = {**NOTHING_ORDERED, **tensors}
        before |= {RATE: before[RATE] * rate, REWOUND: torch.tensor([receipt.step])}
        rounds = (*self.rounds, receipt.round)[-KEPT_ROUNDS:]
        taken_over = StateInfo(run_id=info.run_id, step=receipt.step, rounds=rounds)
        self.load(in_order(self._named(), before), taken_over, _latest(*self.receipts, receipt))

    def load(
        self, tensors: Sequence[Tensor], info: StateInfo, receipts: Sequence[Receipt] = (), anchor: bytes = b""
    ) -> None:
        """Take over a state; raises ValueError, and changes nothing, if it is not a state of this run's model."""
        self._check(tensors, info)
        mine = self._named()
        decay = decay_of(dict(zip(mine, tensors, strict=True)))
        with self.lock, torch.no_grad():
            for own, other in zip(mine.values(), tensors, strict=True):
                own.copy_(other)
            self.decay = decay
            self.step, self.rounds, self.receipts = info.step, info.rounds, tuple(receipts)
            self.anchor = anchor
            self._take_sketch()
        self._listener()

    def _check(self, tensors: Sequence[Tensor], info: StateInfo) -> None:
        if info.run_id != self.run_id:
            raise ValueError(f"the state belongs to the run {info.run_id}")
        check(self._named(), tensors)

    def _named(self) -> dict[str, Tensor]:
        own = (*self.model.named_parameters(), *self.model.named_buffers())
        kept = enumerate(self.optimizer.state_tensors())
        of_model: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in own}
        return of_model | {f"optimizer.{number}": tensor for number, tensor in kept} | self._ordered


def _latest(*receipts: Receipt) -> tuple[Receipt, ...]:
    """Without the oldest where they would be too much."""
    kept = list(receipts)
    while sum(200 + len(each.record) for each in kept) > MAX_RECEIPT_BYTES:
        del kept[0]
    return tuple(kept)
