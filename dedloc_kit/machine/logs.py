"""What modules of ours warn of, on its way to a person."""

import logging
import os
import threading
from collections.abc import Callable
from multiprocessing import get_context

CLOSE_SECONDS = 5.0
_ours = logging.getLogger("dedloc_kit")


class Warnings(logging.Handler):
    """Hands on each warning as a text, also those of processes that are forked later; what is worse has a traceback
    and is for the log alone."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        """:param tell: called in the thread that warns, or in one that hears the other processes"""
        super().__init__(logging.WARNING)
        self._tell, self._process = tell, os.getpid()
        # Another process must not call `tell` itself: two that write to one pipe tear each other's lines.
        self._others = get_context("fork").Queue()
        self._hearing = threading.Thread(target=self._hear, name="warnings", daemon=True)
        self._hearing.start()
        _ours.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.WARNING:
            return
        if os.getpid() == self._process:
            self._tell(record.getMessage())
        else:
            self._others.put(record.getMessage())

    def close(self) -> None:
        """Hand on what has come until now, and no more."""
        _ours.removeHandler(self)
        self._others.put(None)
        self._hearing.join(CLOSE_SECONDS)
        super().close()

    def _hear(self) -> None:
        while (text := self._others.get()) is not None:
            self._tell(text)
