"""The training state of a run whose model is cut into stages, as one."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.learning.train.state.checkpoint import Found
from dedloc_kit.learning.train.state.state import Position, TrainingState
from dedloc_kit.records.orders import Decay
from dedloc_kit.records.state import StateInfo

SETTLED_SECONDS = 10.0
"""Stages take a step within so long of each other, unless one of them lacks peers."""
LOOK_SECONDS = 0.02


class StagedState:
    """The states of all stages as one; see `TrainingState` for what each name promises.

    :param whole: makes one model of those of all stages, which shares their tensors
    :param states: of the stages, in their order
    """

    def __init__(
        self,
        run: RunConfig,
        whole: Callable[[Sequence[torch.nn.Module]], torch.nn.Module],
        states: Sequence[TrainingState],
    ) -> None:
        self.run, self.run_id = run, run.run_id
        self._whole, self._states = whole, states

    @property
    def size(self) -> int:
        """Parameters."""
        return sum(state.layout.size for state in self._states)

    @property
    def step(self) -> int:
        return min(state.step for state in self._states)

    @property
    def position(self) -> Position:
        return Position(self.step, self._states[-1].round)

    @property
    def rewound(self) -> int:
        """0 as well if stages went back with different steps: that led nowhere."""
        first, *others = {state.rewound for state in self._states}
        return 0 if others else first

    @property
    def decay(self) -> Decay | None:
        return self._states[0].decay

    @property
    def info(self) -> StateInfo:
        """Its rounds are the last one of each stage."""
        rounds = tuple(state.round for state in self._states if state.round)
        return StateInfo(run_id=self.run_id, step=self.step, rounds=rounds)

    @property
    def model(self) -> torch.nn.Module:
        """The whole one; it shares the tensors of the stages."""
        return self._whole([state.model for state in self._states])

    def model_copy(self) -> torch.nn.Module:
        """A whole one of its own, of the moment, in the rooms of the stages; under the lock."""
        return self._whole([state.model_copy() for state in self._states])

    @property
    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held by whoever reads all stages, if that can be, at the same step."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while True:
            with ExitStack() as held:
                for state in self._states:
                    held.enter_context(state.lock)
                if self._settled or time.monotonic() > deadline:
                    yield
                    return
            time.sleep(LOOK_SECONDS)

    @property
    def _settled(self) -> bool:
        return len({state.step for state in self._states}) == 1

    def snapshot(self) -> tuple[torch.nn.Module, Position]:
        with self.lock:
            return self.model_copy(), self.position

    def copy(self) -> Found:
        """Raises ValueError while the stages are not at the same step."""
        deadline = time.monotonic() + SETTLED_SECONDS
        while time.monotonic() < deadline:
            copies = [state.copy() for state in self._states]
            if len({info.step for _, info in copies}) == 1:
                return self.together(copies)
            time.sleep(LOOK_SECONDS)
        raise ValueError("its stages are not at the same step")

    def together(self, parts: Sequence[Found]) -> Found:
        """The states of all stages at one step as one state; `split` parts them again."""
        tensors = {
            f"stage{number}.{name}": tensor for number, (named, _) in enumerate(parts) for name, tensor in named.items()
        }
        rounds = tuple(info.rounds[-1] for _, info in parts if info.rounds)
        return tensors, StateInfo(run_id=self.run_id, step=parts[0][1].step, rounds=rounds)

    def model_of(self, tensors: Mapping[str, Tensor]) -> torch.nn.Module:
        parts = enumerate(self._states)
        return self._whole([state.model_of(tensors, f"stage{number}.") for number, state in parts])

    def parameters_copy(self) -> dict[str, Tensor]:
        with self.lock:
            return {name: tensor.detach() for name, tensor in self.model_copy().named_parameters()}

    def load_named(self, tensors: Mapping[str, Tensor], info: StateInfo) -> None:
        self.check_named(tensors, info)
        for state, (part, part_info) in zip(self._states, self.split((dict(tensors), info)), strict=True):
            state.load_named(part, part_info)

    def check_named(self, tensors: Mapping[str, Tensor], info: StateInfo) -> None:
        if info.run_id != self.run_id:
            raise ValueError(f"the state belongs to the run {info.run_id}")
        for state, (part, part_info) in zip(self._states, self.split((dict(tensors), info)), strict=True):
            state.check_named(part, part_info)

    def split(self, found: Found) -> list[Found]:
        """Such a state by stages; raises ValueError if it is not one of so many."""
        tensors, info = found
        if info.rounds and len(info.rounds) != len(self._states):
            raise ValueError(f"it is a state of {len(info.rounds)} stages, the run has {len(self._states)}")
        return [
            (
                _of_stage(tensors, number),
                StateInfo(run_id=state.run_id, step=info.step, rounds=info.rounds[number : number + 1]),
            )
            for number, state in enumerate(self._states)
        ]


def _of_stage(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    begin = f"stage{number}."
    return {name.removeprefix(begin): tensor for name, tensor in tensors.items() if name.startswith(begin)}
