"""What a run has to beat: the model that it goes on from, measured once on the run's own held-out data."""

import logging

from dedloc_kit.config.run import RunConfig
from dedloc_kit.config.section import public_name
from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Task
from dedloc_kit.ledger import Ledger, StartPoint

_log = logging.getLogger(__name__)


def measure_start(run: RunConfig, task: Task, ledger: Ledger) -> None:
    """Record what the model that the run goes on from makes of the held-out data, unless the ledger has it already.

    Loads that model, and takes as long as two evaluations. If it cannot be measured a warning says why.
    """
    known = ledger.start()
    if known is not None and known.run_id == run.run_id:
        return
    try:
        if known is not None:  # of another configuration
            ledger.record_start(None)
        if run.data.evaluation is None:
            return
        loss = task.start_loss()
        if loss is not None:
            name = public_name(str(run.task.options["init_from"])).partition("@")[0]
            ledger.record_start(StartPoint(run.run_id, name, loss))
    except UserError as error:
        _log.warning("whether the run beats the model that it began from is not known: %s", error)
