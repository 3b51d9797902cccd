"""How a command that goes on until it is told to end is told so: the first time it leaves, the second time it ends."""

import argparse
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

LASTING = {"api", "mirror", "demo", "join", "launch", "serve"}
"""Commands that leave a swarm or close a page when they end, which may take a minute."""
SAME_SECONDS = 0.5
"""Signals so close together are one: `timeout` and `uv run` pass on what the terminal has sent already."""
GRACE_SECONDS = 1.0
"""For the command to clean up by itself, once all workers have been killed."""
INTERRUPTED = 128 + signal.SIGINT
"""The exit code, as a shell tells of a program that Ctrl-C has ended."""
TEMPORARY = set[Path]()
"""Folders of a command to remove, should it have no time to do so itself."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def call(options: argparse.Namespace) -> int:
    """Run the command that was chosen and return its exit code. Raises KeyboardInterrupt at the first signal."""
    if options.command not in LASTING:
        return int(options.call(options) or 0)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        from dedloc_kit.display.console import mention

        mention(
            f"Ctrl-C does nothing here, as the program was started with SIGINT ignored; to leave: kill {os.getpid()}"
        )
    interrupts = Interrupts()
    try:
        return int(options.call(options) or 0)
    finally:
        if interrupts.ending:  # by another thread; Python's own last moments are no place for a further signal
            threading.Event().wait()
        interrupts.close()


def end_all() -> None:
    """End this process and its workers now, whatever they wait for."""
    _kill_workers()
    time.sleep(GRACE_SECONDS)
    _kill_workers()  # that were started meanwhile
    for folder in tuple(TEMPORARY):
        shutil.rmtree(folder, ignore_errors=True)
    if console := sys.modules.get("dedloc_kit.display.console"):  # no import, for which it might wait
        console.show_cursor()
    os._exit(INTERRUPTED)


def _kill_workers() -> None:
    if worker := sys.modules.get("dedloc_kit.worker"):
        worker.kill_all()


class Interrupts:
    """The first Ctrl-C or SIGTERM raises KeyboardInterrupt in the main thread; a second one ends all processes.

    The second one is seen by a thread of its own, as the main thread may be waiting in code that no signal interrupts.
    An ignored SIGINT stays ignored.

    :param end: what a second one does
    :param same_seconds: within which several are one
    """

    def __init__(self, end: Callable[[], None] = end_all, same_seconds: float = SAME_SECONDS) -> None:
        self._end, self._same_seconds = end, same_seconds
        self.ending = False
        """Whether a second one has come."""
        self._asked = False
        self._first: float | None = None  # when the first signal came
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        heeded = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
        self._before = {each: signal.signal(each, self._leave) for each in heeded}
        threading.Thread(target=self._watch, name="interrupts", daemon=True).start()

    @property
    def asked(self) -> bool:
        """Whether a first one has come."""
        return self._asked or self._first is not None

    def close(self) -> None:
        """Handle signals as before, unless the process is leaving: then a second one still counts, to its very end."""
        if self.asked:
            self._asked = True  # also where another handler has taken the first one, as a web server's does
            return
        for each, handler in self._before.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._write)

    def _leave(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._asked:
            self._asked = True
            raise KeyboardInterrupt

    def _watch(self) -> None:
        while number := os.read(self._read, 1):
            if number[0] not in _SIGNALS:
                continue
            if self._first is None:
                self._first = time.monotonic()
            elif time.monotonic() - self._first >= self._same_seconds:
                self.ending = True
                self._end()
        os.close(self._read)
