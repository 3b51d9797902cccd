"""A task whose model is one file of plain numbers, for people without dedloc_kit."""

import json
import os
from pathlib import Path

import torch

from dedloc_kit.learning.task import Usage
from tests.tiny import TinyTask, wait_for

HALF = "weights.half"


class Written(TinyTask):
    """`WRITTEN_HOLD=PATH` lets it wait, half written, until that file exists."""

    fails: Exception | None = None

    def export(self, model: torch.nn.Module, folder: Path, repository: str) -> Usage:
        if self.fails is not None:
            raise self.fails
        if "WRITTEN_HOLD" in os.environ:
            (folder / HALF).write_text("[")
            wait_for("WRITTEN_HOLD")
            (folder / HALF).unlink()
        (folder / "weights.json").write_text(json.dumps([p.sum().item() for p in model.parameters()]))
        return Usage("numbers", "guessing", f"load({repository!r})")


TASKS = {"tiny": Written}
