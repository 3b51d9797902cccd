"""Keeps the coordinator's checkpoints: also of a state of which others have parts, without waiting for these."""

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dedloc_kit.coordinator.lasting import LastingRecord
from dedloc_kit.errors import UserError
from dedloc_kit.experts.state import MixedState
from dedloc_kit.training.checkpoint import Found
from dedloc_kit.training.staged import StagedState
from dedloc_kit.training.state import TrainingState

_log = logging.getLogger(__name__)


class Saving:
    """Called by the thread to which the record belongs.

    :param spare: gives the step that is still being evaluated, whose checkpoint is to stay
    :ivar saved: what is kept already
    """

    def __init__(
        self, state: TrainingState | StagedState, lasting: LastingRecord, spare: Callable[[], int | None]
    ) -> None:
        self._state, self._lasting, self._spare = state, lasting, spare
        self._gathers = isinstance(state, MixedState)
        self.saved = state.info  # nobody needs the first state: it can be made again
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._running: Future[Found] | None = None
        self._again = False

    def save(self) -> None:
        """Keep the current state; if others have parts of it, `finish` does that later."""
        if self._running is not None:
            self._again = True
        elif self._state.info != self.saved:
            self._running = self._thread.submit(self._state.copy)
            if not self._gathers:
                self.finish(wait=True)

    def finish(self, wait: bool = False) -> None:
        """Write what has been gathered, if that is done.

        :param wait: until it is, and so is what was asked for meanwhile
        """
        while self._running is not None and (wait or self._running.done()):
            running, self._running = self._running, None
            try:
                found = running.result()
                self._lasting.checkpoint(found, self._spare())
                self.saved = found[1]
            except (UserError, ValueError, OSError) as error:  # a full disk must not end the run
                _log.warning("no checkpoint of step %d: %s", self._state.step, error)
            if self._again:
                self._again = False
                self.save()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
