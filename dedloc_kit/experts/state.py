"""The training state of a run with experts, where all of them are held: the trunk's, and theirs of the same step."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from torch import Tensor

from dedloc_kit.config.parts import ExpertsConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.frozen import Frozen
from dedloc_kit.experts.keeping import Keeping, State
from dedloc_kit.experts.mixture import connect_alone
from dedloc_kit.experts.network import Network
from dedloc_kit.experts.refused import Refused
from dedloc_kit.experts.stored import Stored
from dedloc_kit.learning.train.flat import Room, shared_zeros
from dedloc_kit.learning.train.state.checkpoint import Found
from dedloc_kit.learning.train.state.rooms import give_back_large
from dedloc_kit.learning.train.state.state import Position, SharedOptimizer, TrainingState
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Receipt

SETTLED_SECONDS = 10.0
"""So long after the trunk at the latest the experts have taken a step, if anybody knows of how many samples."""
LOOK_SECONDS = 0.01
ATTEMPTS = 3
"""At fetching the experts that others hold before the swarm goes on."""
_EXPERTS, _MODEL = "experts.", "model."

Take = Callable[[ExpertName, State], object]
Fetch = Callable[[Sequence[ExpertName], int, Take], object]
"""Gives those of these experts that others have as they were after this global step, one after the other."""
T = TypeVar("T")

_log = logging.getLogger(__name__)


class MixedState(TrainingState):
    """What is averaged and handed to newcomers is the trunk; what a checkpoint holds and goes back to is all of it.

    :param experts_room: where the experts lie, and copies of them: those of a run may be more than the memory holds
    """

    def __init__(
        self,
        model: torch.nn.Module,
        make_optimizer: Callable[[torch.nn.Module], SharedOptimizer],
        run: RunConfig,
        room: Room = shared_zeros,
        experts_room: Room = torch.zeros,
    ) -> None:
        super().__init__(model, make_optimizer, run, room)
        assert run.experts is not None
        self._names = names_of(run.experts)
        self.bank = Bank(run, experts_room=experts_room)
        self._stored = Stored(None, run.run_id)
        self._lost: dict[ExpertName, int] = {}
        self._fetch: Fetch = lambda names, step, take: None
        self._begin_anew: Callable[[], object] = lambda: None
        self._fetching = threading.Lock()
        self._renewed = -1
        self.keeping = Keeping(self.bank, run, self.rate_of, parted=lambda name, state: self._stored.put(name, state))

    def another(
        self, model: torch.nn.Module, make_optimizer: Callable[[torch.nn.Module], SharedOptimizer]
    ) -> "MixedState":
        made = MixedState(model, make_optimizer, self.run, self.room, self.bank.experts_room)
        made.hold_all()
        return made

    def hold_all(self) -> None:
        """Have all experts: before anything else, and after processes were forked, which would keep a copy of what is
        overwritten here."""
        give_back_large()  # what making, trying and copying them takes besides
        self.bank.hold_all()

    def have_hosts(self, fetch: Fetch, begin_anew: Callable[[], object], stored: Stored) -> None:
        """Others are going to hold some of the experts.

        :param fetch: how these are had
        :param begin_anew: told when all are here again, of an earlier state
        :param stored: for copies of them
        """
        self._fetch, self._begin_anew, self._stored = fetch, begin_anew, stored

    def renew_one(self) -> None:
        """Fetch one of the experts that others keep, each in its turn, if it has learned since it was fetched last."""
        self._stored.write()
        with self._fetching:
            kept, step, count = self.keeping.kept, self.step, len(self._names)
            for place in range(self._renewed + 1, self._renewed + 1 + count):
                name = self._names[place % count]
                if name not in kept and not self._has(name, step):
                    self._renewed = place % count
                    self._fetch([name], step, self._store)
                    return

    def _has(self, name: ExpertName, step: int) -> bool:
        copy = self._stored.get(name)
        return copy is not None and copy[1] == step

    def _store(self, name: ExpertName, state: State) -> None:
        self._stored.put(name, state)
        self._stored.write()

    def known(self, name: ExpertName) -> State:
        """An expert that nobody has any more, as it was known last: what it has learned since is lost, and it goes on
        with the step that the others are at."""
        copy = self._stored.get(name)
        assert copy is not None, "an expert that is not here was here"
        tensors, step = copy
        newest = max(step, self.keeping.step)
        _log.warning("the expert %s is lost with all who had it: it goes back by %d steps", name, newest - step)
        self._lost[name] = newest - step
        return tensors, newest

    def take_lost(self) -> dict[ExpertName, int]:
        """The experts that have come back as they were known last since this was asked, and how many steps they have
        lost."""
        lost, self._lost = self._lost, {}
        return lost

    def take(self, step: int, samples: int) -> None:
        """Let the experts that are here take a global step that the trunk has taken or come to.

        :param samples: of all trainers in that step
        """
        for name, (tensors, known) in self._stored.of_earlier(self.keeping.kept):
            # The swarm has gone on without this machine, which may have begun again from before its newest copy.
            if any(here < known < step for here in self.bank.steps([name])):
                self.bank.load(name, tensors, known)
        self.keeping.stepped(step, samples)

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Locked at a step that the experts have taken as well."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:
            with self.lock:
                settled = all(step == self.step for step in self.bank.steps(self.keeping.kept))
                if not settled and time.monotonic() > deadline:
                    _log.warning("nobody tells how many samples global step %d had; its experts guess", self.step)
                    self.take(self.step, self.run.global_batch)
                    settled = True
                if settled:
                    yield
                    return
            time.sleep(LOOK_SECONDS)

    def _whole(self, trunk: Callable[[], T]) -> tuple[T, Position, StateInfo, dict[ExpertName, State], bool]:
        """A copy of the trunk, all experts, and whether they are of its step: the swarm may go on while those that
        others hold are fetched."""
        for _ in range(ATTEMPTS):
            with self._fetching:
                with self._settled():
                    copied, position, info = trunk(), self.position, self.info
                    experts = dict[ExpertName, State]()
                    for name in self.keeping.kept:
                        with suppress(Refused):  # it has just gone
                            experts[name] = self.bank.state(name)
                away = [name for name in self._names if name not in experts]
                if old := [name for name in away if not self._has(name, position.step)]:
                    self._fetch(old, position.step, self._store)
                experts |= {name: copy for name in away if (copy := self._stored.get(name)) is not None}
            if complete := all(name in experts and experts[name][1] == position.step for name in self._names):
                break
        return copied, position, info, experts, complete

    def snapshot(self) -> tuple[torch.nn.Module, Position]:
        assert self.run.experts is not None
        model, position, _, experts, complete = self._whole(self.model_copy)
        if not complete:
            _log.warning(
                "some experts are not had as they were after global step %d: older ones stand in", position.step
            )
        connect_alone(model, _frozen(self.run.experts, {name: tensors for name, (tensors, _) in experts.items()}))
        return model, position

    def model_of(self, tensors: Mapping[str, Tensor], begin: str = "") -> torch.nn.Module:
        assert self.run.experts is not None
        model = super().model_of(tensors, begin)
        connect_alone(model, frozen_of(self.run.experts, tensors))
        return model

    def copy(self) -> Found:
        def trunk() -> dict[str, Tensor]:
            return {name: tensor.detach().clone() for name, tensor in self._named().items()}

        tensors, position, info, experts, complete = self._whole(trunk)
        if not complete:
            raise ValueError(f"not all hosts give their experts as they were after global step {position.step}")
        for expert, (own, _) in experts.items():
            tensors |= {f"{_EXPERTS}{expert}.{name}": tensor for name, tensor in own.items()}
        return tensors, info

    def load_named(self, tensors: Mapping[str, Tensor], info: StateInfo) -> None:
        self.check_named(tensors, info)
        trunk, experts = _divided(tensors)
        super().load_named(trunk, info)
        self._load_experts(experts, info.step)

    def check_named(self, tensors: Mapping[str, Tensor], info: StateInfo) -> None:
        trunk, experts = _divided(tensors)
        super().check_named(trunk, info)
        if experts.keys() != set(map(str, self._names)):
            raise ValueError("its experts are not those of the run")
        for name in self._names:
            self.bank.check(name, experts[str(name)])

    def go_back(self, tensors: Mapping[str, Tensor], info: StateInfo, receipt: Receipt, rate: float) -> None:
        self.check_named(tensors, info)
        trunk, experts = _divided(tensors)
        super().go_back(trunk, info, receipt, rate)
        self._stored.clear()
        self._load_experts(experts, receipt.step)
        self._begin_anew()

    def _load_experts(self, experts: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        for name in self._names:
            self.bank.load(name, experts[str(name)], step)
            self.keeping.keep(name)


def frozen_of(settings: ExpertsConfig, tensors: Mapping[str, Tensor]) -> Frozen:
    """The experts in a checkpoint, to be used; raises ValueError if it does not hold all that there are."""
    _, experts = _divided(tensors)
    return _frozen(settings, {name: experts.get(str(name), {}) for name in names_of(settings)})


def _frozen(settings: ExpertsConfig, experts: Mapping[ExpertName, Mapping[str, Tensor]]) -> Frozen:
    """Of what each expert has; raises ValueError for one that lacks something."""
    networks = {}
    for name, tensors in experts.items():
        network = Network(settings.width, settings.hidden, 0)  # whose tensors give way to those that are there
        own = {key.removeprefix(_MODEL): tensor for key, tensor in tensors.items() if key.startswith(_MODEL)}
        try:
            network.load_state_dict(own, assign=True)
        except RuntimeError:
            raise ValueError(f"it does not hold the expert {name}") from None
        networks[name] = network
    return Frozen(networks, settings.grid)


def _divided(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """The trunk's, and each expert's by its name."""
    trunk = {name: tensor for name, tensor in tensors.items() if not name.startswith(_EXPERTS)}
    experts: dict[str, dict[str, Tensor]] = {}
    for name in tensors.keys() - trunk.keys():
        *expert, kind, own = name.removeprefix(_EXPERTS).split(".")
        experts.setdefault(".".join(expert), {})[f"{kind}.{own}"] = tensors[name]
    return trunk, experts
