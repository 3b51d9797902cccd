"""Faults that a worker injects into itself, by name: `TINY_FAULT="dies in step 3"`.

`dies`, `stalls`: kills or stops all of its processes when it has sent the first part of a round, from that global step
on: in a round whose only reducer it is it sends none.
`drifts`: its parameters are off after that global step, as if it had applied half an average.
`TINY_FAULT="orders a decay"`: to every round it brings an order of its own that the run ends with this step.
`claims`: from that global step on it says that its loss was a million.
`boasts`: from that global step on it says everywhere that it has 64 global batches, and sends the opposite of its
gradients a thousand times over.
`TINY_FAULT="full disk while PATH"`: neither its ledger nor its checkpoints can be written as long as that file exists.
"""

import errno
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.errors import UserError
from dedloc_kit.learning.train.gradients.gradients import Gradients
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.steps import Contribution, Receipt
from dedloc_kit.swarm.allreduce.link import Link
from dedloc_kit.swarm.allreduce.outbox import Outbox
from dedloc_kit.swarm.allreduce.round import Round
from dedloc_kit.swarm.allreduce.wire import Kind
from dedloc_kit.swarm.consensus.records import Commit
from dedloc_kit.swarm.directory.tracker import Tracker
from dedloc_kit.swarm.rounds.finished_step import decay_order
from dedloc_kit.swarm.rounds.rounds import Rounds


def inject(fault: str) -> None:
    """Call it before the worker builds its averager."""
    if fault.startswith("full disk while "):
        _fill_disk_while(Path(fault.removeprefix("full disk while ")))
        return
    if fault == "orders a decay":
        _order_a_decay()
        return
    match = re.fullmatch(r"(dies|stalls|drifts|claims|boasts) in step (\d+)", fault)
    assert match is not None, fault
    name, number = match.group(1), int(match.group(2))
    if name == "drifts":
        _drift_at(number)
    elif name == "claims":
        _claim_from(number)
    elif name == "boasts":
        _boast_from(number)
    else:
        _signal_in_round(signal.SIGKILL if name == "dies" else signal.SIGSTOP, number)


def _signal_in_round(signal: signal.Signals, step: int) -> None:
    complete, send = Round.complete, Outbox._send
    due = False

    async def beginning(self: Round) -> Commit:
        nonlocal due
        due = 0 < step <= self.setting.instance.step
        return await complete(self)

    async def failing(self: Outbox, reducer: int, link: Link) -> None:
        plain = link.send

        async def send_and_fail(message: bytes) -> None:
            nonlocal due, step
            await plain(message)
            if due and message[0] == Kind.PART:  # once: another stream of the round may get here when it goes on
                due, step = False, 0
                os.killpg(0, signal)

        link.send = send_and_fail  # type: ignore[method-assign]
        await send(self, reducer, link)

    Round.complete, Outbox._send = beginning, failing  # type: ignore[method-assign]


def _drift_at(step: int) -> None:
    apply = TrainingState.apply

    def drifting(self: TrainingState, average: torch.Tensor, receipt: Receipt, decay: int = 0) -> None:
        apply(self, average * 0.5 if receipt.step == step else average, receipt, decay)

    TrainingState.apply = drifting  # type: ignore[method-assign]


def _order_a_decay() -> None:
    contribution = Rounds._contribution

    def ordering(self: Rounds) -> Contribution:
        order = decay_order(self._signer, self._run.run_id, 1, self._state.rewound)
        return contribution(self).model_copy(update={"decay_order": order})

    Rounds._contribution = ordering  # type: ignore[method-assign]


def _claim_from(step: int) -> None:
    truth = Rounds._contribution

    def claimed(self: Rounds) -> Contribution:
        said = truth(self)
        return said if said.step < step else said.model_copy(update={"loss": 1e6})

    Rounds._contribution = claimed  # type: ignore[method-assign]


def _boast_from(step: int) -> None:
    truth, report, load = Rounds._contribution, Tracker.report, Gradients.load_in_flight

    def claimed(self: Rounds) -> Contribution:
        said, most = truth(self), MAX_BATCHES * self._run.global_batch
        more = {"samples": most, "session_samples": said.step * most, "weight": None}
        return said if said.step < step else said.model_copy(update=more)

    def reported(self: Tracker, mine: Progress, *rest: Any, **named: Any) -> None:
        most = MAX_BATCHES * self._run.global_batch
        report(self, mine if mine.step < step - 1 else mine.model_copy(update={"samples": most}), *rest, **named)

    def loaded(self: Gradients, flat: torch.Tensor) -> None:
        load(self, flat)
        flat.mul_(-1000.0)

    Rounds._contribution = claimed  # type: ignore[method-assign]
    Tracker.report = reported  # type: ignore[method-assign]
    Gradients.load_in_flight = loaded  # type: ignore[method-assign]


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
