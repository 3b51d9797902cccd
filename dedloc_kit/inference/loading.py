"""The two ends of a served model, and how they become those of a newer version."""

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dedloc_kit.blocks.architecture import Layout, configuration, skeleton
from dedloc_kit.blocks.ends import Begin, ends
from dedloc_kit.blocks.weights import weights
from dedloc_kit.blocks.weights.manifest import Manifest
from dedloc_kit.errors import UserError
from dedloc_kit.inference.worker_link import Network
from dedloc_kit.serving.config import ModelVersion, ServingConfig


class Loaded:
    """A model's ends as they are loaded now. They become those of the newest version that is served as a whole when a
    session begins and no other one goes on: embeddings and head have to be of the version that the layers are of."""

    def __init__(self, network: Network, source: str | None, told: Callable[[str], None]) -> None:
        self._network, self._source, self._told = network, source, told
        self._lock = threading.Lock()
        self._sessions: weakref.WeakSet[Any] = weakref.WeakSet()
        self.files, self.version, self._tensors = self._taken()
        self._model: Any = None

    def make(self, begin: Begin) -> Any:
        """The model; once."""
        self._model = ends(configuration(self.version.config), self._tensors, begin)
        return self._model

    def begun(self, make: Callable[[str], Any]) -> Any:
        """A new session, made for the digest of a manifest."""
        with self._lock:
            if not any(not session.closed for session in self._sessions):
                self._renew()
            session = make(self.version.manifest)
            self._sessions.add(session)
            return session

    def _renew(self) -> None:
        if isinstance(self._network.swarm, ServingConfig):
            return
        newest = self._network.ask("newest", {})[0]["version"]
        if newest in ("", self.version.manifest):
            return
        try:
            self.files, self.version, tensors = self._taken()
        except UserError as error:  # perhaps its ends are to be had later
            self._told(f"{self.version.model} is used still: {error}")
            return
        fresh = ends(configuration(self.version.config), tensors, self._model.begin)
        with torch.no_grad():
            self._model.load_state_dict(fresh.state_dict())
        self._told(f"{self.version.model} is used from now on")

    def _taken(self) -> tuple[Path, ModelVersion, dict[str, torch.Tensor]]:
        """What the newest version consists of outside its layers."""
        said, _ = self._network.ask("prepare", {})
        version = ModelVersion.model_validate(said["version"])
        files = Path(said["folder"])
        manifest = Manifest.from_json((files / "manifest.json").read_bytes())
        names = Layout.of(skeleton(configuration(version.config))).outside(manifest.tensors)
        there, _ = self._network.ask("obtain", {"names": names, "source": self._source})
        found = (
            weights.read(Path(there["files"]), manifest, names)
            if there["files"]
            else weights.read_each(Path(there["store"]), manifest, names)
        )
        return files, version, {name: tensor.clone() for name, tensor in found}
