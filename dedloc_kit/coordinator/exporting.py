"""What leaves a run whose model has experts: as an architecture of a library has it, where there is one."""

import logging
from pathlib import Path

from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.errors import UserError
from dedloc_kit.experts.state import MixedState
from dedloc_kit.learning.task import Task
from dedloc_kit.learning.train.state.checkpoint import save
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState

_log = logging.getLogger(__name__)


def check_published(peer: CoordinatorConfig, state: TrainingState | StagedState, task: Task) -> None:
    """Raise UserError if the model is to be pushed and cannot be used without dedloc_kit: better now than in the
    end."""
    if peer.hub is not None and (why := why_unwritten(state, task)):
        raise UserError(f"{why}; or leave --hub out")


def export(path: Path, state: TrainingState | StagedState, task: Task) -> None:
    """Write the parameters to a file: the experts with those of the trunk, by the library's names; where it has no such
    architecture the trunk's alone."""
    if not isinstance(state, MixedState):
        save(path, state.parameters_copy(), state.info)
    elif why := why_unwritten(state, task):
        _log.warning("%s has the trunk alone: %s", path, why)
        save(path, state.parameters_copy(), state.info)
    else:
        whole = task.to_transformers(state.snapshot()[0], path.parent)
        save(path, {name: each.detach() for name, each in whole.named_parameters()}, state.info)


def why_unwritten(state: TrainingState | StagedState, task: Task) -> str:
    """Why the model cannot be used without dedloc_kit, in one line; empty if nothing is known against it."""
    return task.unsupported("to_transformers") if isinstance(state, MixedState) else ""
