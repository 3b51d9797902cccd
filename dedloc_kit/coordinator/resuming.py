"""Which training state a coordinator starts from, and what has happened until then."""

import json
import logging
import tempfile
from pathlib import Path

from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.train.state.checkpoint import Checkpoints, Found, find
from dedloc_kit.learning.train.state.orders import NOTHING_ORDERED
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.ledger import Contributor, Ledger
from dedloc_kit.ledger.copying import restore, write_copy
from dedloc_kit.records.contributors import CONTRIBUTORS_FILE, LEDGER_FOLDER, Given
from dedloc_kit.records.state import StateInfo

MAX_CONTRIBUTORS_BYTES = 2**26

_log = logging.getLogger(__name__)


def resume(state: TrainingState | StagedState, checkpoints: Checkpoints, named: Path | None) -> bool:
    """Take over the folder's newest checkpoint or the one that the organizer names, whichever is newer.

    Returns whether it is the one that the organizer names.

    A state of the same run goes on as if nothing had happened. So does one of a run of the same name whose
    configuration was changed: with its step, on which the learning rate depends, and the optimizer's moments; in this
    way an organizer corrects a learning rate or adds data. What was ordered ends with that: a factor that rewinds have
    put on the rate, and a decay.
    The state of a run of another name is refused, as is one whose shapes are not those of the model.

    :param named: a place for `checkpoint.find`
    Raises UserError if there is nothing whole, or it does not belong here; the state is then as it was.
    """
    own = checkpoints.newest()
    if own is not None:
        _load(state, own, f"the checkpoint in {checkpoints.folder}", "choose another --folder")
    if named is None:
        return False
    tensors, info = find(named)
    if own is not None and info.step <= state.step:
        _log.warning(
            "%s is at step %d, so the run goes on from there, not from step %d of --resume; for that choose another "
            "--folder",
            *(checkpoints.folder, state.step, info.step),
        )
        return False
    if info.run_id != state.run_id:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in NOTHING_ORDERED}
    _load(state, (tensors, _adopted(info, state.run)), f"the training state of {named}", "check --resume")
    return True


def begin(state: TrainingState | StagedState, task: Task) -> None:
    """Nothing to resume: start with the model that the run goes on from, if it does.

    Raises UserError if that model cannot be used.
    """
    if not task.unsupported("init_from") and isinstance(state, TrainingState):  # stages go on from no model
        try:
            state.begin_with(task.first_model())
        except ValueError as error:
            raise UserError(f"task.init_from cannot be used: {error}; name another one") from None


def credit(ledger: Ledger, named: Path) -> None:
    """Take over the whole history from the same place, or at least who has given what; nothing if this ledger has
    begun already.

    What cannot be read is worth a warning. Raises UserError if the ledger cannot be written.
    """
    if ledger.last_step() or ledger.contributors():
        return
    folder = named if named.is_dir() else named.parent
    try:
        if _restored(ledger.path, folder):
            return
    except UserError as error:
        _log.warning("the history of the run is not restored (%s)", error)
    try:
        contributors = _contributors(folder)
    except (OSError, ValueError, TypeError) as error:
        _log.warning("who contributed before is not known: what %s says of it cannot be read (%s)", folder, error)
        return
    ledger.adopt(contributors)


def _restored(ledger: Path, folder: Path) -> bool:
    """From a copy of a Hub repository, from a run's folder or from the checkpoints in one; False if there is none."""
    if (folder / LEDGER_FOLDER).is_dir():
        restore(ledger, folder / LEDGER_FOLDER)
        return True
    for path in (folder / "ledger.sqlite", folder.parent / "ledger.sqlite"):
        if path.exists():
            with tempfile.TemporaryDirectory(dir=ledger.parent) as copy:
                write_copy(path, Path(copy) / LEDGER_FOLDER)
                restore(ledger, Path(copy) / LEDGER_FOLDER)
            return True
    return False


def _contributors(folder: Path) -> list[Contributor]:
    listed = folder / CONTRIBUTORS_FILE
    if not listed.exists():
        return []
    if listed.stat().st_size > MAX_CONTRIBUTORS_BYTES:
        raise ValueError("it is too large")
    every = [Given.parse(values) for values in json.loads(listed.read_text(encoding="utf-8"))]
    return [Contributor(**given.model_dump()) for given in {given.peer: given for given in every}.values()]


def _adopted(info: StateInfo, run: RunConfig) -> StateInfo:
    """The info as of this run; raises UserError if it is that of a run of another name."""
    if info.run_id == run.run_id:
        return info
    if info.run_id.rpartition("-")[0] != run.name:
        raise UserError(
            f"the training state of --resume belongs to the run {info.run_id}, this one is {run.run_id}; to go on with "
            "a changed configuration keep the run's name"
        )
    changed = "going on from step %d of %s; the configuration has changed, this is %s"
    _log.warning(changed, info.step, info.run_id, run.run_id)
    return info.model_copy(update={"run_id": run.run_id})


def _load(state: TrainingState | StagedState, found: Found, what: str, fix: str) -> None:
    try:
        state.load_named(*found)
    except ValueError as error:
        raise UserError(f"{what} does not belong to this run ({error}); {fix}") from None
