"""A volunteer's session: finds out what there is to do, keeps a worker at it, and says how it goes."""

import platform
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from dedloc_kit.machine.account import CODE, Account, who_am_i
from dedloc_kit.machine.home import peer_folder
from dedloc_kit.machine.meters import Meters
from dedloc_kit.session.snapshot import Phase, Snapshot
from dedloc_kit.session.state import SessionState
from dedloc_kit.session.supervisor import Notice, Resting, Supervisor, Wish
from dedloc_kit.version import __version__
from dedloc_kit.worker import Role, Worker

METER_SECONDS = 2.0
LOG_BYTES, LOG_LINES = 8_000, 40
S = TypeVar("S", bound=SessionState)


class Session(ABC, Generic[S]):
    """From the invitation to the thanks. Starts at once, in the background."""

    role: ClassVar[Role]
    begin: type[S]
    """Of the state."""
    _account: Account | None = None

    def __init__(
        self,
        where: str,
        *,
        folder: Path | None = None,
        settings: Mapping[str, Any] | None = None,
        code: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Raises UserError if the folder is another volunteer's or cannot be written.

        :param where: the page's URL, a repository of the Hub or an invitation's file
        :param folder: keeps this volunteer's identity; without one, a free one in the home folder
        :param settings: options that the volunteer has chosen
        :param code: what lets this volunteer into a run that is not open to all; see `personal_code`
        :param environment: variables for the worker
        """
        self.ended = threading.Event()
        """Set when nothing runs any more; the last snapshot then says how it ended."""
        self._where, self._settings, self._code = where, dict(settings or {}), code
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(peer_folder(folder))
        self._lock = threading.Lock()
        self._state = replace(self.begin(), since=time.monotonic())
        self._supervisor = Supervisor(
            self._job, folder=self._folder, on_notice=self.heard, environment=environment, role=self.role
        )
        threading.Thread(target=self._watch, name="session", daemon=True).start()

    @property
    def worker(self) -> Worker | None:
        """The process that works, or the one that did last."""
        return self._supervisor.worker

    def state(self) -> S:
        """Everything that is known now."""
        with self._lock:
            return self._state.at(time.monotonic())

    def snapshot(self) -> Snapshot:
        """What a view shows now."""
        with self._lock:
            return self._state.shown(time.monotonic())

    def pause(self) -> None:
        """Free this machine; what is finished counts. Returns at once; does nothing after `leave`."""
        self._wish("pause")
        self._supervisor.pause()

    def resume(self) -> None:
        """Take part again after a pause; nothing after `leave`."""
        self._wish("work")
        self._supervisor.resume()

    def leave(self) -> None:
        """Leave for good; returns at once, `ended` is set when nothing runs any more."""
        self._wish("leave")
        self._supervisor.leave()

    def heard(self, notice: Notice) -> None:
        """What happens; the supervisor's threads call it."""
        self._update(lambda state: state.heard(notice, time.monotonic()))
        if isinstance(notice, Resting):
            self._change(details=self._details(notice.why))

    # What there is to do, in the supervisor's thread

    @abstractmethod
    def _job(self) -> Mapping[str, Any]:
        """Everything that the worker needs; found out while it imports its libraries. Raises UserError."""

    def _who(self) -> Account:
        """As whom this volunteer takes part; asked once."""
        if self._account is None:
            self._account = who_am_i(self._settings.get("name"), self._folder)
            if self._account.warning:
                self._warn(self._account.warning)
        self._change(name=self._account.name, anonymous=self._account.anonymous)
        return self._account

    def _secrets(self, account: Account) -> dict[str, str]:
        return {**account.environment(), **({CODE: self._code} if self._code else {})}

    # What is looked at from time to time, in a thread of its own

    def _look(self, meters: Meters) -> None:
        """Each few seconds."""

    def _close(self) -> None:
        """Once, before the last snapshot."""

    def _watch(self) -> None:
        meters = Meters()
        try:
            while not self._supervisor.ended.wait(METER_SECONDS):
                self._look(meters)
        finally:
            self._supervisor.ended.wait()
            self._end()

    def _end(self) -> None:
        try:
            self._close()
        finally:
            failure = self._supervisor.failure
            if failure:
                self._change(details=self._details(failure))
            self._update(lambda state: state.ended(failure))
            self._stack.close()
            self.ended.set()

    # The state

    def _wish(self, wish: Wish) -> None:
        self._update(lambda state: state.wished(wish, time.monotonic()))

    def _doing(self, text: str, then: str) -> None:
        """What happens before the worker does anything."""
        self._update(lambda state: state.doing(text, time.monotonic(), then=then, phase=Phase.STARTING))

    def _warn(self, text: str) -> None:
        self._update(lambda state: state.warned(text))

    def _change(self, **changes: Any) -> None:
        self._update(lambda state: replace(state, **changes))

    def _update(self, change: Callable[[S], S]) -> None:
        with self._lock:
            self._state = change(self._state)

    def _details(self, why: str) -> str:
        """For support: what runs where, and the last lines of the log."""
        worker, now = self.worker, self.state()
        lines = [
            why,
            f"run: {now.run_id or self._where}",
            f"peer: {now.peer or 'not joined'}",
            f"device: {now.device or 'not known yet'}",
            f"dedloc_kit {__version__}, Python {platform.python_version()}, {platform.platform()}",
        ]
        lines += [f"{name} {version(name)}" for name in ("torch", "hivemind", "transformers", "datasets")]
        if worker is not None:
            lines += [f"log: {worker.log}", *_last_lines(worker.log)]
        return "\n".join(lines)


def _last_lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_BYTES))
            return log.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []
