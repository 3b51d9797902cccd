"""Notices which layers of a served model have few servers, and tells whoever began to serve it."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dedloc_kit.events import AnyEvent, Failed, Served
from dedloc_kit.serving.coverage import coverage, named, served_by
from dedloc_kit.steering.alerts import LOG, Alert, Kind
from dedloc_kit.steering.debounce import Settled
from dedloc_kit.steering.journal import Journal


class ServingAlerts:
    """Watches one swarm, by the events of its first server; from any thread. The same is told once."""

    def __init__(self, folder: Path, version: str, tell: Callable[[Alert], None]) -> None:
        """
        :param folder: of the first server; it keeps what was told
        :param version: the digest of the manifest that is served
        :param tell: told about every alert
        """
        self._version, self._tell = version, tell
        self._journal = Journal(folder / LOG, Alert)
        self._lock = threading.Lock()
        self._bare, self._single = Settled(), Settled()

    def hear(self, event: AnyEvent) -> None:
        """Learn from one event."""
        with self._lock:
            match event:
                case Served():
                    self._look(event)
                case Failed(text=text):
                    self._raise("server", f"the first server stopped: {text}")
                case _:
                    pass

    def _look(self, served: Served) -> None:
        stretches = coverage(served.layers, served.servers, self._version)
        bare, single = served_by(0, stretches), served_by(1, stretches)
        now = time.monotonic()
        if self._bare.news(bare, now):
            told = f"nobody serves {named(bare)} of {served.layers}, so no answer can come"
            self._raise("layers", told if bare else "each layer has a server again")
        if self._single.news(single, now):
            told = f"one server alone serves {named(single)} of {served.layers}"
            self._raise("layers", f"{told}: find another" if single else "no layer has one server only any more")

    def _raise(self, kind: Kind, text: str) -> None:
        alert = Alert(time=time.time(), kind=kind, text=text)
        with suppress(OSError):  # a full disk is worth an alert all the same
            self._journal.add(alert)
        self._tell(alert)
