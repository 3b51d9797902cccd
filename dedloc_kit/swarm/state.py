"""The training state that all peers share: parameters, buffers and optimizer statistics, as named tensors."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dedloc_kit.records import Receipt, StateInfo
from dedloc_kit.training.lamb import Lamb

KEPT_ROUNDS = 16
# hivemind sends the metadata in one message of at most 4 MB.
MAX_RECEIPT_BYTES = 1_000_000


class TrainingState:
    """What a newcomer downloads, a checkpoint holds and every complete round changes alike on all peers."""

    def __init__(self, model: torch.nn.Module, optimizer: Lamb, run_id: str) -> None:
        self.model, self.optimizer, self.run_id = model, optimizer, run_id
        self.step = 0
        self.rounds: tuple[str, ...] = ()
        self.receipts: tuple[Receipt, ...] = ()
        """Of the latest global steps, for peers who missed them."""
        # Held while the tensors change, so that a newcomer or a checkpoint never gets half a step.
        self.lock = threading.Lock()

    @property
    def round(self) -> str:
        """The all-reduce that led to this state; empty before the first."""
        return self.rounds[-1] if self.rounds else ""

    @property
    def info(self) -> StateInfo:
        return StateInfo(run_id=self.run_id, step=self.step, rounds=self.rounds)

    def advance(self, receipt: Receipt) -> None:
        """Count a global step."""
        self.step = receipt.step
        self.rounds = (*self.rounds, receipt.round)[-KEPT_ROUNDS:]
        self.receipts = (*self.receipts, receipt)[-KEPT_ROUNDS:]
        while sum(map(_size, self.receipts)) > MAX_RECEIPT_BYTES:
            self.receipts = self.receipts[1:]

    def copy(self) -> tuple[dict[str, Tensor], StateInfo]:
        """A consistent copy on the CPU, by name."""
        with self.lock:
            return {name: tensor.detach().cpu().clone() for name, tensor in self._named().items()}, self.info

    def for_newcomer(self) -> tuple[dict[str, Any], Sequence[Tensor]]:
        """The copy as hivemind hands it over: metadata and a list of tensors."""
        tensors, info = self.copy()
        receipts = [receipt.model_dump() for receipt in self.receipts if receipt.step <= info.step]
        return {"info": info.model_dump(), "receipts": receipts}, list(tensors.values())

    def parameters_copy(self) -> dict[str, Tensor]:
        """A copy of the parameters alone, by their names in the model."""
        with self.lock:
            return {name: tensor.detach().cpu().clone() for name, tensor in self.model.named_parameters()}

    def load_named(self, tensors: Mapping[str, Tensor], info: StateInfo) -> None:
        """Take over a state whose tensors are known by name (a checkpoint); errors as `load`."""
        names = self._named().keys()
        if names != tensors.keys():
            raise ValueError("its tensors are not those of the model")
        self.load([tensors[name] for name in names], info)

    def load(self, tensors: Sequence[Tensor], info: StateInfo) -> None:
        """Take over a state; raises ValueError, and changes nothing, if it is not a state of this run's model."""
        if info.run_id != self.run_id:
            raise ValueError(f"the state belongs to the run {info.run_id}")
        mine = self._named()
        if len(tensors) != len(mine):
            raise ValueError(f"the state has {len(tensors)} tensors, the model {len(mine)}")
        for (name, own), other in zip(mine.items(), tensors, strict=True):
            if own.shape != other.shape or own.dtype != other.dtype:
                raise ValueError(f"'{name}' has the shape {tuple(other.shape)}, the model {tuple(own.shape)}")
            if other.is_floating_point() and not bool(other.isfinite().all()):
                raise ValueError(f"'{name}' holds numbers that are not finite")
        with self.lock, torch.no_grad():
            for own, other in zip(mine.values(), tensors, strict=True):
                own.copy_(other)
            self.step, self.rounds = info.step, info.rounds

    def _named(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {f"model.{name}": tensor for name, tensor in self.model.named_parameters()}
        tensors |= {f"model.{name}": tensor for name, tensor in self.model.named_buffers()}
        tensors |= {f"optimizer.{index}": tensor for index, tensor in enumerate(self.optimizer.state_tensors())}
        return tensors


def _size(receipt: Receipt) -> int:
    return sum(map(len, receipt.signed))
