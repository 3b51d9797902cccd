"""The coordinator's versions of the model for those who serve it: in a thread of its own, so that training never waits.

Each version is written as people use the model, everything of it is kept by its hash, and the organizer's signed word
in the directory names the newest ones.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from dedloc_kit.blocks.served import read_model
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.errors import UserError
from dedloc_kit.learning.task import Task
from dedloc_kit.records.state import StateInfo
from dedloc_kit.serving.config import ModelVersion
from dedloc_kit.serving.offer import MAX_VERSIONS
from dedloc_kit.swarm.peer import SwarmPeer
from dedloc_kit.swarm.serving.layers.releases import Releases
from dedloc_kit.swarm.serving.layers.versions import contents
from dedloc_kit.swarm.serving.layers.weights import ModelContents
from dedloc_kit.swarm.transfer.store import Store

LOOK_SECONDS, REPEAT_SECONDS = 2.0, 60.0
"""Between two looks whether a version is due, and two times that the same is said."""
CHANGE_SECONDS = 900.0
"""For so long the next version waits for servers that have not changed to the last one: if versions came faster than
they change, none would ever be served by all of them."""

_log = logging.getLogger(__name__)


class Releasing:
    """Hands out a version every so many global steps, and one as soon as there is any.

    :param store: what is given to others by its hash
    :param lost: whether the training has diverged at a step
    """

    def __init__(
        self, run: RunConfig, peer: CoordinatorConfig, me: SwarmPeer, store: Store, lost: Callable[[int], bool]
    ) -> None:
        self._run, self._peer, self._store, self._lost = run, peer, store, lost
        self._state, self._task = me.optimizer.state, me.task
        self._releases = Releases(me.dht, me.signer, run.run_id, me.optimizer.tracker.reject)
        self._versions: list[tuple[ModelVersion, set[str]]] = []  # the newest first, each with all that belongs to it
        self._step, self._since = 0, 0.0
        self._said = 0.0
        self._due, self._leaving = threading.Event(), threading.Event()
        if self._state.step:
            self._due.set()
        self._thread = threading.Thread(target=self._work, name="releases", daemon=True)
        self._thread.start()

    def step_done(self, step: int) -> None:
        """Hand out a version soon, if it is time to; returns at once."""
        if not self._versions or step // self._peer.serve_every > self._step // self._peer.serve_every:
            self._due.set()

    def release_soon(self) -> None:
        """Hand out the state of the moment, unless it is already."""
        self._due.set()

    def close(self) -> None:
        """Who serves goes on with what it has."""
        self._leaving.set()
        self._thread.join(LOOK_SECONDS)

    def _work(self) -> None:
        while not self._leaving.wait(LOOK_SECONDS):
            try:
                if self._due.is_set() and not self._awaited():
                    self._due.clear()
                    self._release()
                if self._versions and time.monotonic() >= self._said + REPEAT_SECONDS:
                    self._say()
            except (UserError, ValueError, OSError) as error:  # TimeoutError is an OSError
                _log.warning("no version of the model is handed out now: %s", error)
            except Exception:  # the task's export may fail in any way, and training must go on
                _log.exception("no version of the model is handed out")

    def _awaited(self) -> bool:
        """Has the last version to be taken over first?"""
        if not self._versions or time.monotonic() > self._since + CHANGE_SECONDS:
            return False
        return self._releases.behind(self._versions[0][0].manifest)

    def _release(self) -> None:
        tensors, info = self._state.copy()
        if info.step == self._step or self._lost(info.step):
            return
        folder = self._peer.folder / ".release"
        shutil.rmtree(folder, ignore_errors=True)  # what a killed process left there
        folder.mkdir(parents=True)
        try:
            version = self._kept(folder, tensors, info)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        others = [each for each in self._versions if each[0] != version[0]]
        self._versions = [version, *others][:MAX_VERSIONS]
        self._step, self._since = info.step, time.monotonic()
        self._say()
        self._store.keep_only(set[str]().union(*(named for _, named in self._versions)))

    def _kept(self, folder: Path, tensors: dict[str, Tensor], info: StateInfo) -> tuple[ModelVersion, set[str]]:
        """Write this state's model into the empty folder, and have all of it in the store."""
        task: Task = self._task
        if task.export(self._state.model_of(tensors), folder, self._run.name) is None:
            raise UserError(f"the task '{self._run.task.name}' writes no model of transformers")
        model = read_model(str(folder), folder)
        version = ModelVersion(
            model=f"{self._run.name}, global step {info.step}",
            config=model.config,
            manifest=model.manifest.digest,
            files=dict(model.files),
        )
        weights = ModelContents(folder, model.manifest)
        for tensor in model.manifest.tensors.values():
            if (part := weights.find(tensor.sha256)) is not None:
                self._store.copy(tensor.sha256, part)
        for content in (version.canonical(), model.manifest.canonical()):
            self._store.put(content.encode())
        for name in model.files:
            self._store.put((folder / name).read_bytes())
        return version, contents(version, model.manifest)

    def _say(self) -> None:
        self._releases.say([version.digest for version, _ in self._versions])
        self._said = time.monotonic()
