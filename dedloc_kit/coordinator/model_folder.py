"""The coordinator keeps its newest best model for people, `RUN/model/`: in a thread, so that training never waits.

The model is read from its checkpoint, not from the state that is trained, and the folder is replaced as a whole.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.export.checkpoint_file import CheckpointFile
from dedloc_kit.export.folder import History, NotForPeople, Place, write_model
from dedloc_kit.export.placing import clear_leftovers, placed
from dedloc_kit.export.source import Exported
from dedloc_kit.hub import CARD_FILE, card_metadata
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Ledger
from dedloc_kit.pretrained import MODEL_FOLDER

REST = 10.0
"""Rest for so many times as long as it took: while a young run gets better all the time, it is not written all the
time."""
RETRY_SECONDS = 300.0
LAST_SECONDS = 10.0
"""How long the last one may hold up the end of a run."""

_log = logging.getLogger(__name__)


class ModelFolder:
    """
    :param folder: the run's
    :param state: makes models of the run
    :param name: of the model for people, if it is on the Hub as well
    """

    def __init__(
        self,
        folder: Path,
        state: TrainingState | StagedState,
        task: Task,
        ledger: Ledger,
        emit: Callable[[AnyEvent], None],
        name: str | None = None,
    ) -> None:
        self._folder, self._state, self._task, self._ledger, self._emit = folder, state, task, ledger, emit
        self._out = folder / MODEL_FOLDER
        self._name = name or f"./{MODEL_FOLDER}"
        self._wanted: tuple[Path, int] | None = None
        self._due, self._leaving = threading.Event(), threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name="model folder", daemon=True)
        self._thread.start()

    def look(self, checkpoints: Checkpoints) -> None:
        """Renew the folder soon if another checkpoint is the best, or, where none was measured, the newest; returns at
        once."""
        with suppress(OSError):  # the run has removed it: another one will be the best
            step = checkpoints.step_to_use()
            path = checkpoints.path(step) if step is not None else None
            wanted = path and (path, path.stat().st_mtime_ns)
            if wanted and wanted != self._wanted:
                self._wanted = wanted
                self._due.set()

    def close(self, patience: float = LAST_SECONDS) -> None:
        """Renew it for the last time, if that can be done within so many seconds."""
        self._leaving.set()
        self._due.set()
        self._thread.join(patience)

    def _work(self) -> None:
        clear_leftovers(self._out)
        leaving = False
        while not leaving:
            self._due.wait()
            self._due.clear()
            leaving = self._leaving.is_set()
            began = time.monotonic()
            try:
                self._renew()
                self._failed = False
            except NotForPeople as error:
                _log.info("%s is not kept: %s", self._out, error)
                return
            except FileNotFoundError:  # the run has removed that checkpoint: another one will be wanted
                continue
            except Exception as error:  # the task's export may fail in any way, and training must go on
                self._tell(error)
            pause = RETRY_SECONDS if self._failed else REST * (time.monotonic() - began)
            self._leaving.wait(pause)
            if self._failed:
                self._due.set()

    def _renew(self) -> None:
        if self._wanted is None:
            return
        tensors = CheckpointFile(self._wanted[0])
        written = Exported.of(self._out)
        if written is not None and written.is_of(tensors.info):
            return
        place = Place(self._name, metadata=card_metadata(self._out / CARD_FILE))
        with placed(self._out, tensors.info) as folder:
            model = self._state.model_of(tensors)
            history = History.of(self._ledger, tensors.info.step)
            if not write_model(folder, model, self._task, tensors.info.step, history, place, self._folder):
                raise NotForPeople(self._task.run)

    def _tell(self, error: Exception) -> None:
        """Once, until it can be renewed again."""
        if not self._failed:
            why = (str(error).splitlines() or [""])[0] or type(error).__name__
            self._emit(Warned(text=f"the model for people is not renewed: {why}", alert=True))
        _log.info("%s is not renewed", self._out, exc_info=error)
        self._failed = True
