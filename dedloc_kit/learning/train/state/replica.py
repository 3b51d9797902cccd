"""The replica of the training state's parameters that a device of a volunteer computes with."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat_model import FlatModel
from dedloc_kit.learning.train.state.state import TrainingState


class Replica(FlatModel):
    """The model that a device computes with; it takes over the state between two microbatches."""

    def __init__(self, state: TrainingState, device: torch.device) -> None:
        super().__init__(copy.deepcopy(state.model), device)
        self._state = state
        self._round = state.round
        self.step = state.step
        self.sketch = state.sketch
        """Of these parameters."""

    @torch.no_grad()
    def refresh(self, rebase: Callable[[Tensor], None], forget: Callable[[], None], gives_buffers: bool = True) -> None:
        """Take over the state's parameters if they are newer, and give it our buffers (they are not averaged).

        :param rebase: makes newer parameters those of the model: float32 [layout.size] on the CPU
        :param forget: called before parameters are taken over that the organizer let the run go back to: what was
            computed with those of before is of no use
        :param gives_buffers: otherwise we take over the state's: of the replicas of a host one gives them
        """
        state = self._state
        if (self.step, self._round) == (state.step, state.round):
            return
        with state.lock:
            went_back = state.rewound > self.step
            if went_back:
                forget()
            rebase(state.flat)
            gives = gives_buffers and self.step + 1 == state.step and not went_back
            mine, theirs = list(self.model.buffers()), list(state.model.buffers())
            copy_all(theirs, mine) if gives else copy_all(mine, theirs)
            self.step, self._round, self.sketch = state.step, state.round, state.sketch

    @contextmanager
    def holding(self, flat: Tensor, step: int) -> Iterator[None]:
        """Let it hold the parameters of another step meanwhile: float32 [layout.size] on the CPU, which takes its own
        ones.

        Both, and its buffers, are afterwards what they were.
        """
        buffers, own = [buffer.clone() for buffer in self.model.buffers()], self.step
        self._swap(flat)
        self.step = step
        try:
            yield
        finally:
            self._swap(flat)
            self.step = own
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)

    @torch.no_grad()
    def _swap(self, flat: Tensor) -> None:
        mine = self.read()
        self.load(flat)
        flat.copy_(mine)


def copy_all(to: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy tensors to others of the same shapes and types, between two devices in one copy for each type."""
    by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for own, tensor in zip(to, tensors, strict=True):
        by_type.setdefault(tensor.dtype, []).append((own, tensor))
    for pairs in by_type.values():
        if pairs[0][0].device == pairs[0][1].device:
            values = [tensor for _, tensor in pairs]
        else:
            together = torch.cat([tensor.reshape(-1) for _, tensor in pairs]).to(pairs[0][0].device)
            sizes = [tensor.numel() for _, tensor in pairs]
            values = [part.view(tensor.shape) for part, (_, tensor) in zip(together.split(sizes), pairs, strict=True)]
        for (own, _), value in zip(pairs, values, strict=True):
            own.copy_(value)
