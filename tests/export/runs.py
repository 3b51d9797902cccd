"""Folders as a coordinator leaves them, without a coordinator."""

from pathlib import Path
from typing import Any

import torch

from dedloc_kit.config.places import local_copies
from dedloc_kit.config.run import RunConfig
from dedloc_kit.experts.state import MixedState
from dedloc_kit.learning.task import StageTask, Task, create_task
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.home import remember_copies
from dedloc_kit.organizer.launch import write_invitation
from dedloc_kit.records.steps import Receipt
from tests.invitations import NOBODY, invited
from tests.ledgers import a_step, given


class LedRun:
    """A run's folder, led from this machine, whose steps a test takes."""

    def __init__(self, folder: Path, run: RunConfig, module: str | None = None) -> None:
        self.folder, self.run = folder, run
        folder.mkdir(parents=True)
        invitation = invited(run, (NOBODY,))
        write_invitation(invitation, folder)
        remember_copies(run.run_id, invitation.organizer, local_copies(run))
        self.task: Task = create_task(run, module)
        self.state = _state_of(run, self.task)
        self.checkpoints = Checkpoints(folder / "checkpoints", 3)
        self.ledger = Ledger(folder / "ledger.sqlite")

    def step(self, loss: float | None = None) -> int:
        """Take one more global step and keep its checkpoint.

        :param loss: measured on held-out data
        """
        step: int = self.state.step + 1
        receipt = Receipt(step=step, round=f"{step:04x}", time=0.0, seconds=0.0, record=b"")
        for each in [self.state] if isinstance(self.state, TrainingState) else self.state.states:
            each.apply(torch.full((each.layout.size,), 0.1), receipt)
        if isinstance(self.state, MixedState):
            self.state.take(step, 64)
        recorded = a_step(step).model_copy(update={"round": receipt.round})
        self.ledger.record_step(recorded, {NOBODY.rpartition("/")[2]: given(step, 64, 64 * step)})
        self.checkpoints.save(*self.state.copy())
        if loss is not None:
            self.checkpoints.rate(step, loss)
        return step

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the model now, by name."""
        copied: dict[str, torch.Tensor] = self.state.parameters_copy()
        return copied


def _state_of(run: RunConfig, task: Task) -> Any:
    def made(kind: type[TrainingState], part: Task | StageTask, run: RunConfig) -> Any:
        return kind(part.model(), lambda model: Lamb(part.groups(model), lr=0.1), run)

    if run.experts is not None:
        state = made(MixedState, task, run)
        state.hold_all()
        return state
    if run.pipeline is None:
        return made(TrainingState, task, run)
    stages = [made(TrainingState, task.stage(n), run.of_stage(n)) for n in range(run.pipeline.count)]
    return Staged(run, task.whole, stages)


class Staged(StagedState):
    def __init__(self, run: RunConfig, whole: Any, states: list[TrainingState]) -> None:
        super().__init__(run, whole, states)
        self.states = states
