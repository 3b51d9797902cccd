"""Experts that others keep, as they were last known: also in files, which a later process finds."""

import logging
import threading
from collections.abc import Collection, Iterator
from pathlib import Path

from dedloc_kit.errors import UserError
from dedloc_kit.experts.calls import ExpertName
from dedloc_kit.experts.keeping import State
from dedloc_kit.learning.train.state.checkpoint import load, save
from dedloc_kit.records.state import StateInfo

_log = logging.getLogger(__name__)


class Stored:
    """Of each expert the newest copy, and it in a file, which is whole or not there. From any thread.

    :param folder: also of an earlier process of the same run; with none nothing is written
    """

    def __init__(self, folder: Path | None, run_id: str) -> None:
        self._folder, self._run_id = folder, run_id
        self._copies: dict[ExpertName, State] = {}
        self._unwritten: set[ExpertName] = set()
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._earlier = folder is not None and folder.is_dir()

    def put(self, name: ExpertName, state: State) -> None:
        """Keep this in place of what was kept of the expert; it stays where it lies."""
        with self._lock:
            self._copies[name] = state
            self._unwritten.add(name)

    def write(self) -> None:
        """Write what has come since; what cannot be written is tried again."""
        with self._writing:
            with self._lock:
                unwritten = sorted(self._unwritten) if self._folder is not None else []
            for name in unwritten:
                tensors, step = state = self._copies[name]
                path = self._path(name)
                try:
                    save(path, tensors, StateInfo(run_id=self._run_id, step=step, rounds=()))
                except (UserError, ValueError) as error:
                    _log.warning("a copy of the expert %s is not written: %s", name, error)
                    continue
                with self._lock:
                    if self._copies.get(name) is state:
                        self._unwritten.discard(name)

    def get(self, name: ExpertName) -> State | None:
        """What this process has kept of it."""
        return self._copies.get(name)

    def of_earlier(self, names: Collection[ExpertName]) -> Iterator[tuple[ExpertName, State]]:
        """What an earlier process has kept of these; all that it has left goes then. Once."""
        if self._folder is None or not self._earlier:
            return
        self._earlier = False
        for name in names:
            if name not in self._copies and self._path(name).exists():
                try:
                    tensors, info = load(self._path(name))
                except (ValueError, OSError) as error:
                    _log.warning("%s", error)
                    continue
                if info.run_id == self._run_id:
                    yield name, (tensors, info.step)
        for path in set(self._folder.glob("*.safetensors")) - {self._path(name) for name in self._copies}:
            path.unlink(missing_ok=True)

    def clear(self) -> None:
        """Have none any more."""
        with self._writing, self._lock:
            self._copies.clear()
            self._unwritten.clear()
            self._earlier = False
            for path in self._folder.glob("*.safetensors") if self._folder is not None else ():
                path.unlink(missing_ok=True)

    def _path(self, name: ExpertName) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.safetensors"
