"""Faults that a worker injects into itself, by name: `TINY_FAULT="dies in step 3"`.

`dies`, `stalls`: kills or stops all of its processes when it has sent the first part of the round for that global step.
`drifts`: its parameters are off after that global step, as if it had applied half an average.
`TINY_FAULT="full disk while PATH"`: neither its ledger nor its checkpoints can be written as long as that file exists.
"""

import errno
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from hivemind.proto import averaging_pb2

from dedloc_kit.errors import UserError
from dedloc_kit.ledger import Ledger
from dedloc_kit.records import Receipt
from dedloc_kit.swarm.averaging import allreduce, averager
from dedloc_kit.training.state import TrainingState


def inject(fault: str) -> None:
    """Call it before the worker builds its averager."""
    if fault.startswith("full disk while "):
        _fill_disk_while(Path(fault.removeprefix("full disk while ")))
        return
    match = re.fullmatch(r"(dies|stalls|drifts) in step (\d+)", fault)
    assert match is not None, fault
    name, number = match.group(1), int(match.group(2))
    if name == "drifts":
        _drift_at(number)
    else:
        FaultyAllReduce.signal = signal.SIGKILL if name == "dies" else signal.SIGSTOP
        FaultyAllReduce.step = number
        averager.ExactAllReduce = FaultyAllReduce  # type: ignore[attr-defined]


class FaultyAllReduce(allreduce.ExactAllReduce):
    signal = signal.SIGKILL
    step = 0

    async def _generate_input_for_peer(self, peer_index: int) -> AsyncIterator[averaging_pb2.AveragingData]:
        messages = 0
        mine = self._roll_call.contribution_of(self.peer_id)
        assert mine is not None
        async for message in super()._generate_input_for_peer(peer_index):
            yield message
            messages += 1
            if mine.step == FaultyAllReduce.step and messages == 2:  # the introduction and a part
                FaultyAllReduce.step = 0  # once: another stream of the round may get here when it goes on
                os.killpg(0, FaultyAllReduce.signal)


def _drift_at(step: int) -> None:
    apply = TrainingState.apply

    def drifting(self: TrainingState, average: torch.Tensor, receipt: Receipt) -> None:
        apply(self, average * 0.5 if receipt.step == step else average, receipt)

    TrainingState.apply = drifting  # type: ignore[method-assign]


def _fill_disk_while(path: Path) -> None:
    transaction, replace = Ledger._transaction, os.replace

    @contextmanager
    def failing_transaction(self: Ledger) -> Iterator[None]:
        if path.exists():
            raise UserError("the ledger cannot be written (the disk is full)")
        with transaction(self):
            yield

    def failing_replace(source: str, target: str) -> None:
        if path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    Ledger._transaction = failing_transaction  # type: ignore[method-assign]
    os.replace = failing_replace  # type: ignore[assignment]
