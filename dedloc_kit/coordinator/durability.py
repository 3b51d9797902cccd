"""The lasting record of a run: its ledger, its checkpoints and the small files that it cannot do without.

It is compared again and again with what the run knows, and at every start. What is gone, cut off or older than it must
be is written anew: checkpoints from the state, the small files from what stood in them. The ledger is written anew at a
start only, from a copy that lies beside the checkpoints; of one that is damaged no copy is made.
"""

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dedloc_kit.access.admitted_store import ADMITTED_FILE, BOOK_FILE
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Warned
from dedloc_kit.keys import IDENTITY_FILE, key_id
from dedloc_kit.known_peers import MEMORY_FILE, own_id
from dedloc_kit.learning.train.state.checkpoint import Checkpoints, Found
from dedloc_kit.learning.train.state.ruined import RUINED_FILE
from dedloc_kit.ledger.files import NOTHING
from dedloc_kit.ledger.recovery import opened
from dedloc_kit.machine.private import make_private, write_private
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.state import StateInfo
from dedloc_kit.records.steps import Contribution, GlobalStep
from dedloc_kit.steering.orders import ORDERS_FILE

LEDGER_FILE = "ledger.sqlite"
COPY_FILE = "ledger-copy.sqlite"
"""Among the checkpoints."""
COPY_WRITES = 20
"""After so many steps and evaluations the copy is renewed."""
JSON_FILES = (
    *(INVITATION_FILE, MEMORY_FILE, ORDERS_FILE, BOOK_FILE, ADMITTED_FILE),
    f"checkpoints/{RUINED_FILE}",
)

_log = logging.getLogger(__name__)


class Outage:
    """Raises an alert when something that has to last cannot be written, and another one when it can be again."""

    def __init__(self, what: str, emit: Callable[[AnyEvent], None]) -> None:
        self._what, self._emit, self._lasts = what, emit, False

    def failed(self, error: object) -> None:
        """It could not be written."""
        text = f"{self._what} cannot be written: {error}"
        if self._lasts:
            _log.warning("%s", text)
        else:
            self._lasts = True
            self._emit(Warned(text=text, alert=True))

    def over(self) -> None:
        """It was written."""
        if self._lasts:
            self._lasts = False
            self._emit(Warned(text=f"{self._what} can be written again", alert=True))


@contextmanager
def despite_a_full_disk(outage: Outage | None = None) -> Iterator[None]:
    """What cannot be written is worth a warning: the swarm needs its coordinator all the more.

    :param outage: told whether it could be written, in place of the warning
    """
    try:
        yield
    except (UserError, OSError, sqlite3.Error) as error:
        if outage is None:
            _log.warning("%s", error)
        else:
            outage.failed(error)
    else:
        if outage is not None:
            outage.over()


def check_key(folder: Path) -> None:
    """Raises UserError if a coordinator was here and its key is gone or another one: its volunteers follow that key."""
    known, path = own_id(folder), folder / IDENTITY_FILE
    if known and key_id(path) != known:
        raise UserError(
            f"{path} is gone, damaged or another one than this run's, and its volunteers follow no other; put it back "
            f"from a copy, or, if there is none, remove {folder / MEMORY_FILE} and give all a new invitation"
        )


class LastingRecord:
    """What is recorded in a run's folder, by one process. Not for several threads at once, but for the ledger."""

    def __init__(self, folder: Path, keep: int, answers: int = 0) -> None:
        """Open what is there. Raises UserError if it cannot be used.

        :param keep: so many checkpoints
        :param answers: see `Ledger`
        """
        self.folder, self._keep = folder, keep
        self.checkpoints = Checkpoints(folder / "checkpoints", keep)
        self._copy = self.checkpoints.folder / COPY_FILE
        self.ledger, lost = opened(folder / LEDGER_FILE, self._copy, answers)
        self._lost = [lost] if lost else []
        self._least = self.ledger.last_step()
        self._writes = 0
        """Since the copy was renewed."""
        self._copied = NOTHING
        """The newest step in the copy; of a ledger that lacks it no copy is made."""
        self._sizes: dict[Path, int] = {}
        self._held = {folder / name: b"" for name in (IDENTITY_FILE, *JSON_FILES)}
        self._look_at_files()

    def begin(self, state: StateInfo | None) -> None:
        """What the run starts with stands here now: it is compared, and lasts from now on. Raises UserError.

        :param state: of this folder's newest checkpoint, if the run starts from that
        """
        self._least = self.ledger.last_step()
        if state is not None and not self._lost:
            if self._least + 1 < state.step and (self._least or not self.ledger.contributors()):
                self._lost.append(f"the ledger after step {self._least} (the checkpoint is of step {state.step})")
            elif self._least and not state.step:
                self._lost.append(f"all checkpoints (the ledger goes to step {self._least})")
        self._sizes = {path: path.stat().st_size for path in self.checkpoints.kept()}
        self._renew_copy()

    def lost(self) -> list[str]:
        """What had gone since this was asked last, in words."""
        lost, self._lost = self._lost, []
        return lost

    def step(self, step: GlobalStep, contributions: dict[str, Contribution]) -> None:
        """Record a global step; raises UserError if that is not possible now."""
        self.ledger.record_step(step, contributions)
        if step.step <= self._least:  # it was forgotten with those after it, and must not come back from the copy
            self._copied = NOTHING
            self._renew_copy()
        else:
            self._count_write()
        self._least = self.ledger.last_step()

    def evaluation(self, step: int, evaluation: Evaluation, time: float) -> None:
        """Record an evaluation; raises UserError if that is not possible now.

        On other held-out data than before it compares with nothing: the curve begins anew, and so does the search for
        the best checkpoint.
        """
        if self.ledger.measured_on_other(evaluation):
            _log.warning(
                "the held-out data is no longer what it was before step %d: the held-out curve and the best checkpoint "
                "begin anew; files that come later are best added behind the held-out ones, by their names",
                step,
            )
            self.checkpoints.forget_best()
        self.ledger.record_evaluation(step, evaluation, time)
        self._count_write()

    def checkpoint(self, found: Found, spare: int | None) -> None:
        """Keep a state, and that of the step `spare`; errors as `Checkpoints.save`."""
        path = self.checkpoints.save(*found, spare)
        self._sizes[path] = path.stat().st_size
        kept = set(self.checkpoints.kept())
        self._sizes = {path: size for path, size in self._sizes.items() if path in kept}

    def repair(self, state: Callable[[], Found]) -> None:
        """Write anew what is not as it must be; raises UserError or OSError if that fails.

        :param state: gives a copy of the current state
        """
        self._look_at_files()
        self._look_at_checkpoints(state)
        if not self._copy.exists():
            self._renew_copy()
            self._lost.append("the ledger's copy")

    def close(self) -> None:
        with suppress(UserError):
            self._renew_copy()
        self.ledger.close()

    def _count_write(self) -> None:
        self._writes += 1
        if self._writes >= COPY_WRITES:
            self._renew_copy()

    def _renew_copy(self) -> None:
        self._copied = self.ledger.copy(self._copy, self._copied)
        self._writes = 0

    def _look_at_checkpoints(self, state: Callable[[], Found]) -> None:
        gone = [path for path, size in self._sizes.items() if not (path.exists() and path.stat().st_size == size)]
        if not gone:
            return
        newest = max(self._sizes)
        for path in gone:
            del self._sizes[path]
            path.unlink(missing_ok=True)  # one that was cut off would be taken for a checkpoint
        self._lost += ["the newest checkpoint" if path == newest else path.name for path in sorted(gone)]
        protected = self.checkpoints.protected
        self.checkpoints = Checkpoints(self.checkpoints.folder, self._keep)
        self.checkpoints.protect(protected)
        if newest in gone:
            try:
                self.checkpoint(state(), None)
            except ValueError as error:
                raise UserError(f"no checkpoint: {error}") from None

    def _look_at_files(self) -> None:
        """The key never changes; of the others the newest that can be read counts."""
        for path, held in self._held.items():
            there = path.read_bytes() if path.exists() else b""
            if there == held:
                continue
            if not held if path.name == IDENTITY_FILE else _is_json(there):
                self._held[path] = there
            elif held:
                self._lost.append(path.name)
                _write_privately(path, held)


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict | list)
    except ValueError:
        return False


def _write_privately(path: Path, content: bytes) -> None:
    make_private(path.parent)
    temporary = path.with_name(f".{path.name}.rescued")
    write_private(temporary, content)
    os.replace(temporary, path)
