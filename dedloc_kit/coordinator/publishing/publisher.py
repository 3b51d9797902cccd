"""The coordinator's pushes to the Hub: in a thread of its own, so that training never waits for them."""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.places import names_local_files
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Pushed, PushFailed
from dedloc_kit.export.folder import History, Place, write_model
from dedloc_kit.hub import HubUnavailable, Repository
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.train.state.checkpoint import save
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Ledger
from dedloc_kit.ledger.copying import write_copy
from dedloc_kit.records.contributors import LEDGER_FOLDER
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.state import STATE_FILE, StateInfo

FIRST_PAUSE, MAX_PAUSE = 5.0, 300.0
"""Seconds between two attempts while the Hub fails: twice as long each time."""
LOOK_SECONDS, INVITATION_SECONDS = 5.0, 600.0
"""Seconds between two looks at the invitation, and at least between two pushes of it alone."""

_log = logging.getLogger(__name__)


class Publisher:
    """Pushes the state of the moment every so many global steps, and again and again until that succeeds.

    Steps that are done meanwhile are not queued: the next attempt takes whatever state is the newest by then.
    """

    def __init__(
        self,
        run: RunConfig,
        peer: CoordinatorConfig,
        state: TrainingState | StagedState,
        task: Task,
        ledger: Ledger,
        emit: Callable[[AnyEvent], None],
        lost: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """Start the thread. A run that is resumed is pushed at once: a push may have been pending when it ended.

        :param lost: whether the training has diverged at a step; such a state must not take a good one's place
        """
        assert peer.hub is not None
        self._run, self._peer = run, peer
        self._repository = Repository(peer.hub, private=peer.private)
        self._state, self._task, self._ledger, self._emit = state, task, ledger, emit
        self._lost, self._claimed = lost, False
        self._invited, self._invite_due = "", 0.0
        self._pushed = 0  # step 0 is the untrained model
        self._asked = state.step
        self._due, self._leaving = threading.Event(), threading.Event()
        if state.step:
            self._due.set()
        self._thread = threading.Thread(target=self._work, name="pushes", daemon=True)
        self._thread.start()

    def step_done(self, step: int) -> None:
        """Push soon, if it is time to; returns at once."""
        every = self._peer.push_every
        if step // every > self._asked // every:
            self._asked = step
            self._due.set()

    def push_soon(self) -> None:
        """Push the state of the moment, unless it is there already; returns at once."""
        self._due.set()

    def close(self) -> None:
        """Push the last state, if that can be done within the time that the configuration gives."""
        self._leaving.set()
        self._due.set()
        self._thread.join(self._peer.last_push_seconds)
        if self._thread.is_alive():
            self._failed("the last push to the Hub takes too long and is given up; start the run again to repeat it")

    def _work(self) -> None:
        pause = FIRST_PAUSE
        while not self._leaving.is_set():
            due = self._due.wait(LOOK_SECONDS)
            if due:
                self._due.clear()
            failure = (self._attempt() if due else None) or self._invite()
            if failure is None:
                pause = FIRST_PAUSE
            elif not self._leaving.is_set():
                self._failed(f"{failure}; trying again in {pause:.0f} s")
                self._leaving.wait(pause)
                pause = min(2 * pause, MAX_PAUSE)
                if due:
                    self._due.set()
        failure = self._attempt()
        if failure is not None:
            self._failed(f"{failure}; the checkpoints hold the last state, start the run again to push it")

    def _attempt(self) -> str | None:
        """Push the current state unless it is on the Hub already; why that failed."""
        try:
            tensors, info = self._state.copy()
        except ValueError as error:
            return f"global step {self._state.step} is not on the Hub yet ({error})"
        if info.step == self._pushed or self._lost(info.step):
            return None
        try:
            url = self._push(lambda folder: self._fill(folder, tensors, info), f"Global step {info.step}")
        except (HubUnavailable, UserError, ValueError, OSError) as error:
            return f"global step {info.step} is not on the Hub yet ({error})"
        except Exception as error:  # the task's export may fail in any way, and training must go on
            _log.exception("a push failed")
            return f"global step {info.step} is not on the Hub yet ({type(error).__name__}, see the log)"
        self._pushed = info.step
        self._emit(Pushed(step=info.step, url=url))
        return None

    def _invite(self) -> str | None:
        """Push the invitation if it has changed and the last one is not too recent; why that failed.

        One that names files of the organizer's machine stays there: others could not read them, and need not know them.
        """
        if time.monotonic() < self._invite_due or names_local_files(self._run):
            return None
        try:
            text = (self._peer.folder / INVITATION_FILE).read_text(encoding="utf-8")
            if text != self._invited:
                self._push(lambda folder: (folder / INVITATION_FILE).write_text(text, encoding="utf-8"), "Invitation")
                self._invited, self._invite_due = text, time.monotonic() + INVITATION_SECONDS
        except FileNotFoundError:  # the coordinator's starter has not written it yet
            return None
        except (HubUnavailable, UserError, ValueError, OSError) as error:
            return f"the invitation is not on the Hub yet ({error})"
        return None

    def _push(self, fill: Callable[[Path], object], message: str) -> str:
        """Push what `fill` writes to a folder in one commit, of which the address is returned."""
        if not self._claimed:
            self._repository.claim(self._run)
            self._claimed = True
        with self._new_folder() as folder:
            fill(folder)
            return self._repository.push(folder, message)

    def _fill(self, folder: Path, tensors: dict[str, Tensor], info: StateInfo) -> None:
        """Write everything that one commit holds."""
        save(folder / STATE_FILE, tensors, info)
        write_copy(self._ledger.path, folder / LEDGER_FOLDER)
        place = Place(self._repository.name, self._repository.name, self._repository.metadata())
        history = History.of(self._ledger, info.step)
        write_model(folder, self._state.model_of(tensors), self._task, info.step, history, place, self._peer.folder)

    @contextmanager
    def _new_folder(self) -> Iterator[Path]:
        """An empty folder beside the checkpoints; what a killed process left there goes first."""
        folder = self._peer.folder / ".push"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _failed(self, text: str) -> None:
        self._emit(PushFailed(text=text))
