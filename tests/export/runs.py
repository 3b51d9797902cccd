"""Folders as a coordinator leaves them, without a coordinator."""

from pathlib import Path

import torch

from dedloc_kit.learning.task import Task, create_task
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Ledger
from dedloc_kit.machine.home import remember_copies
from dedloc_kit.organizer.launch import write_invitation
from dedloc_kit.records.steps import Receipt
from dedloc_kit.run.config import RunConfig
from dedloc_kit.run.places import local_copies
from tests.invitations import NOBODY, invited
from tests.ledgers import a_step, given


class LedRun:
    """A run's folder, led from this machine, whose steps a test takes.

    :param led_here: this machine knows where what the run names is
    """

    def __init__(self, folder: Path, run: RunConfig, led_here: bool = True, module: str | None = None) -> None:
        self.folder, self.run = folder, run
        folder.mkdir(parents=True)
        invitation = invited(run, (NOBODY,))
        write_invitation(invitation, folder)
        if led_here:
            remember_copies(run.run_id, invitation.organizer, local_copies(run))
        self.task: Task = create_task(run, module)
        self.state = TrainingState(self.task.model(), lambda m: Lamb(self.task.groups(m), lr=0.1), run)
        self.checkpoints = Checkpoints(folder / "checkpoints", 3)
        self.ledger = Ledger(folder / "ledger.sqlite")

    def step(self, loss: float | None = None) -> int:
        """Take one more global step and keep its checkpoint.

        :param loss: measured on held-out data
        """
        step = self.state.step + 1
        average = torch.full((self.state.layout.size,), 0.1)
        self.state.apply(average, Receipt(step=step, round=f"{step:04x}", time=0.0, seconds=0.0, signed=()))
        self.ledger.record_step(a_step(step), {NOBODY.rpartition("/")[2]: given(step, 64, 64 * step)})
        self.checkpoints.save(*self.state.copy())
        if loss is not None:
            self.checkpoints.rate(step, loss)
        return step

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the model now, by name."""
        return self.state.parameters_copy()
