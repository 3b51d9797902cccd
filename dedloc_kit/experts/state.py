"""The training state of a run with experts, where all of them are held: the trunk's, and theirs of the same step."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from dedloc_kit.experts.bank import Bank, names_of
from dedloc_kit.experts.frozen import Frozen
from dedloc_kit.experts.mixture import connect_alone
from dedloc_kit.experts.network import Network
from dedloc_kit.records import Receipt, StateInfo
from dedloc_kit.run import ExpertsConfig, RunConfig
from dedloc_kit.training.checkpoint import Found
from dedloc_kit.training.flat import Room, shared_zeros
from dedloc_kit.training.schedule import learning_rate
from dedloc_kit.training.state import Position, SharedOptimizer, TrainingState

SETTLED_SECONDS = 10.0
"""So long after the trunk at the latest the experts have taken a step, if anybody knows of how many samples."""
LOOK_SECONDS = 0.01
_EXPERTS, _MODEL = "experts.", "model."

_log = logging.getLogger(__name__)


class MixedState(TrainingState):
    """What is averaged and handed to newcomers is the trunk; what a checkpoint holds and goes back to is all of it.

    :ivar bank: `hold_all` is to be called before anything else, and after processes were forked, which would keep a
        copy of what is overwritten here
    """

    def __init__(
        self,
        model: torch.nn.Module,
        make_optimizer: Callable[[torch.nn.Module], SharedOptimizer],
        run: RunConfig,
        room: Room = shared_zeros,
    ) -> None:
        super().__init__(model, make_optimizer, run, room)
        assert run.experts is not None
        self._names = names_of(run.experts)
        self.bank = Bank(run)

    def take(self, step: int, samples: int) -> None:
        """Let the experts take a global step that the trunk has taken or come to.

        Steps before it that nobody has told of are taken, too, each as if it had a global batch.

        :param samples: of all trainers in that step
        """
        for missed in range(min(self.bank.steps(self._names)) + 1, step):
            self._take(missed, self.run.global_batch)
        self._take(step, samples)

    def _take(self, step: int, samples: int) -> None:
        self.bank.take(step, max(1, samples), self.rate * learning_rate(self.run.optimizer, step - 1, self.decay))

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Locked at a step that the experts have taken as well."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:
            with self.lock:
                settled = all(step == self.step for step in self.bank.steps(self._names))
                if not settled and time.monotonic() > deadline:
                    _log.warning("nobody tells how many samples global step %d had; its experts guess", self.step)
                    self.take(self.step, self.run.global_batch)
                    settled = True
                if settled:
                    yield
                    return
            time.sleep(LOOK_SECONDS)

    def snapshot(self) -> tuple[torch.nn.Module, Position]:
        with self._settled():
            model, experts, position = self.model_copy(), self.bank.frozen(), self.position
        connect_alone(model, experts)
        return model, position

    def model_of(self, tensors: Mapping[str, Tensor]) -> torch.nn.Module:
        assert self.run.experts is not None
        model = super().model_of(tensors)
        connect_alone(model, frozen_of(self.run.experts, tensors))
        return model

    def copy(self) -> Found:
        with self._settled():
            tensors = {name: tensor.detach().clone() for name, tensor in self._named().items()}
            for expert in self._names:
                own, _ = self.bank.state(expert)
                tensors |= {f"{_EXPERTS}{expert}.{name}": tensor for name, tensor in own.items()}
            return tensors, self.info

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
        self._load_experts(experts, receipt.step)

    def _load_experts(self, experts: Mapping[str, Mapping[str, Tensor]], step: int) -> None:
        for name in self._names:
            self.bank.load(name, experts[str(name)], step)


def frozen_of(settings: ExpertsConfig, tensors: Mapping[str, Tensor]) -> Frozen:
    """The experts in a checkpoint, to be used; raises ValueError if it does not hold all that there are."""
    _, experts = _divided(tensors)
    networks = {}
    for name in names_of(settings):
        network = Network(settings.width, settings.hidden, 0)
        own = {key.removeprefix(_MODEL): each for key, each in experts.get(str(name), {}).items() if _MODEL in key}
        try:
            network.load_state_dict(own)
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
