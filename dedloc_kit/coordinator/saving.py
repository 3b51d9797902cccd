"""Keeps the coordinator's checkpoints: also of a state of which others have parts, without waiting for these."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from dedloc_kit.coordinator.durability import LastingRecord, Outage
from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent
from dedloc_kit.expert_runtime import PAUSES
from dedloc_kit.experts.state import MixedState
from dedloc_kit.learning.train.state.checkpoint import Found
from dedloc_kit.learning.train.state.staged import StagedState
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import GlobalStep


class Saving:
    """Called by the thread to which the record belongs.

    :param spare: gives the step that is still being evaluated, whose checkpoint is to stay
    :param emit: told, as an alert, when no checkpoint can be written and when one can be again
    """

    def __init__(
        self,
        state: TrainingState | StagedState,
        lasting: LastingRecord,
        spare: Callable[[], int | None],
        emit: Callable[[AnyEvent], None],
    ) -> None:
        self._state, self._lasting, self._spare = state, lasting, spare
        self._outage = Outage("checkpoints", emit)
        self._gathers = isinstance(state, MixedState)
        self._saved = state.info  # nobody needs the first state: it can be made again
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._running: Future[Found] | None = None
        self._asked = False
        self._began = self._due = 0.0

    def is_kept(self) -> None:
        """There is a checkpoint of the current state, or it is the first one."""
        self._saved = self._state.info

    def stepped(self, step: GlobalStep, every: int) -> None:
        """A global step is done: keep the state of each so many steps, unless it has become another one meanwhile.

        What the run went back to is kept in any case, or what that has become: whoever starts anew starts from there.
        """
        if not step.peers or (step.step == self._state.step and step.step % every == 0):
            self.save()

    def save(self) -> None:
        """Keep the current state; if others have parts of it, `finish` does that later."""
        self._asked = True
        self.finish(wait=not self._gathers)

    def finish(self, wait: bool = False) -> None:
        """Write what has been gathered, and gather what was asked for, as far as that can be done now.

        :param wait: until all is kept
        """
        while self._running is None or wait or self._running.done():
            if self._running is not None:
                self._write(self._running)
                self._running, self._due = None, time.monotonic() + PAUSES * (time.monotonic() - self._began)
            if not self._asked or not (wait or time.monotonic() >= self._due):
                return
            self._asked = False
            if self._state.info != self._saved:
                self._began = time.monotonic()
                self._running = self._thread.submit(self._state.copy)

    def _write(self, gathered: Future[Found]) -> None:
        try:
            found = gathered.result()
            self._lasting.checkpoint(found, self._spare())
            self._saved = found[1]
        except (UserError, ValueError, OSError) as error:  # a full disk must not end the run
            self._outage.failed(f"no checkpoint of step {self._state.step}: {error}")
        else:
            self._outage.over()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
