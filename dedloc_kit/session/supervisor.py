"""Keeps a volunteer's worker at work: starts it again after a crash, lets it rest while the volunteer wants a pause."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dedloc_kit.errors import UserError
from dedloc_kit.events import AnyEvent, Joined, LocalProgress, Served
from dedloc_kit.worker import NOT_WELCOME, Role, Worker

FIRST_REST, MAX_REST = 2.0, 60.0
"""Seconds between a crash and the next start; each further crash doubles them."""
GOOD_SECONDS = 300.0
"""Who has taken part for so long begins with the first rest again."""
MAX_FALSE_STARTS = 4
"""A worker that so often in a row ended before it took part will not do so at the next try either."""
MAX_REPEATS = 3
"""Nor will one that so often in a row ended for one reason, and gave nothing in between."""
_VARYING = re.compile(r"\d+")
"""In what is otherwise one reason: ports, sizes, moments."""


@dataclass(frozen=True)
class Resting:
    """The worker has ended unexpectedly and is started again in so many seconds."""

    why: str
    seconds: float


@dataclass(frozen=True)
class Paused:
    """The worker has ended because the volunteer wants a pause; nothing runs any more."""


Notice = AnyEvent | Resting | Paused
Wish = Literal["work", "pause", "leave"]


class Supervisor:
    """Runs one worker after the other in a thread, until the volunteer leaves, the run ends or it makes no sense."""

    def __init__(
        self,
        job: Callable[[], Mapping[str, Any]],
        *,
        folder: Path,
        on_notice: Callable[[Notice], None],
        environment: Mapping[str, str] | None = None,
        role: Role = "volunteer",
    ) -> None:
        """Start at once. `on_notice` is called from threads, never from two at a time.

        :param job: finds out what to do, each time that a worker has been started; raises UserError
        :param environment: variables for the workers, beside those of this process
        """
        self.failure: str | None = None
        """Why it could not go on, in one line."""
        self.ended = threading.Event()
        self._job, self._folder, self._environment, self._role = job, folder, environment, role
        self._on_notice = on_notice
        self._telling = threading.Lock()
        self._wish: Wish = "work"
        self._changed = threading.Condition()
        self._worker: Worker | None = None
        self._dismissed = False  # the worker was asked to leave
        self._joined = self._has_joined = False  # the worker took part; any worker did
        self._computed = False  # the worker gave something
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    @property
    def worker(self) -> Worker | None:
        """The one that was started last."""
        return self._worker

    def pause(self) -> None:
        """Let the worker leave, which frees the machine; `resume` starts another one. Returns at once."""
        self._want("pause")

    def resume(self) -> None:
        self._want("work")

    def leave(self) -> None:
        """Leave for good; returns at once, `ended` is set when nothing runs any more."""
        self._want("leave")

    def _want(self, wish: Wish) -> None:
        with self._changed:
            if self._wish == "leave":
                return
            self._wish = wish
            self._changed.notify_all()
            if wish != "work" and self._worker is not None:
                self._dismissed = True
                self._worker.leave()

    def _run(self) -> None:
        try:
            self._supervise()
        except UserError as error:
            self.failure = str(error)
        finally:
            self.ended.set()

    def _supervise(self) -> None:
        rest, false_starts, repeats, before = FIRST_REST, 0, 0, ""
        while True:
            if self._wish == "pause":
                self._tell(Paused())
                self._wait_while("pause", None)
            worker = self._start()
            if worker is None:
                if self._wish == "leave":
                    return
                continue
            began, code = time.monotonic(), self._play(worker)
            if self._dismissed:
                continue
            if code == 0:
                return  # the run is over
            why = worker.failure or "the worker process ended"
            reason = _VARYING.sub("#", why)
            repeats = repeats + 1 if reason == before and not self._computed else 1
            before = reason
            false_starts = 0 if self._joined else false_starts + 1
            # What stops a volunteer that has taken part may well pass, such as a line that is down.
            refused = code == NOT_WELCOME or (code == 2 and not self._has_joined)
            if refused or false_starts >= MAX_FALSE_STARTS:
                raise UserError(why)
            if repeats >= MAX_REPEATS:
                fix = "" if "; " in why else f"; report it, with the log {worker.log}"
                raise UserError(f"the worker stopped {repeats} times in a row before it gave anything: {why}{fix}")
            if self._joined and time.monotonic() - began > GOOD_SECONDS:
                rest = FIRST_REST
            self._tell(Resting(why, rest))
            self._wait_while("work", rest)
            rest = min(MAX_REST, 2 * rest)

    def _start(self) -> Worker | None:
        """A new worker, if the volunteer still wants one."""
        with self._changed:
            if self._wish != "work":
                return None
            self._dismissed = self._joined = self._computed = False
            self._worker = Worker(self._role, folder=self._folder, on_event=self._heard, environment=self._environment)
            return self._worker

    def _play(self, worker: Worker) -> int:
        """Find out what there is to do, while the worker gets ready, and wait for its end; returns its exit code."""
        try:
            worker.begin(self._job())
        except BaseException:
            worker.leave()  # or its end would be news
            worker.kill()
            worker.wait()
            raise
        return worker.wait()

    def _wait_while(self, wish: str, seconds: float | None) -> None:
        """Until the volunteer wants something else, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._wish != wish, seconds)

    def _heard(self, event: AnyEvent) -> None:
        if isinstance(event, Joined):
            self._joined = self._has_joined = True
        if (isinstance(event, LocalProgress) and (event.session_samples or event.carried)) or (
            isinstance(event, Served) and event.mine is not None and event.mine.served
        ):
            self._computed = True
        self._tell(event)

    def _tell(self, notice: Notice) -> None:
        with self._telling:
            self._on_notice(notice)
