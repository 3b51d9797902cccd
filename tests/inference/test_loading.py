"""A user's embeddings and head are of the version that the layers are of."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.weights.manifest import describe_folder
from dedloc_kit.errors import UserError
from dedloc_kit.inference.loading import Loaded
from tests.blocks import tiny
from tests.tiny import tiny_run


class Network:
    """Two versions of a tiny model; which one is the newest can be set."""

    def __init__(self, folder: Path) -> None:
        self.swarm, self.newest, self.missing = tiny_run(), 0, False
        self.folders, self.manifests, self.models = [], list[str](), list[Any]()
        for number in range(2):
            model, place = tiny.model("Llama", num_hidden_layers=1), folder / str(number)
            model.get_input_embeddings().weight.mul_(number + 1)
            model.save_pretrained(place)
            manifest = describe_folder(place)
            (place / "manifest.json").write_text(manifest.canonical())
            self.folders.append(place)
            self.manifests.append(manifest.digest)
            self.models.append(model)

    def ask(self, what: str, values: dict[str, Any]) -> tuple[dict[str, Any], list[None]]:
        place, manifest = self.folders[self.newest], self.manifests[self.newest]
        if what == "newest":
            return {"version": manifest}, []
        if what == "prepare":
            if self.missing:
                raise UserError("nobody gives it")
            config = json.loads((place / "config.json").read_text())
            version = {"model": f"step {self.newest}", "config": config, "manifest": manifest, "files": {}}
            return {"folder": str(place), "version": version}, []
        return {"files": str(place), "store": ""}, []


class Session:
    def __init__(self, version: str) -> None:
        self.version, self.closed = version, False


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def test_the_ends_become_those_of_a_newer_version_once_no_session_goes_on(network: Network) -> None:
    told = list[str]()
    loaded = Loaded(network, None, told.append)  # type: ignore[arg-type]
    model = loaded.make(lambda length: SimpleNamespace())

    def is_of(number: int) -> bool:
        mine, whole = (each.get_input_embeddings().weight for each in (model, network.models[number]))
        return torch.equal(mine, whole)

    first = loaded.begun(Session)
    network.newest = 1
    second = loaded.begun(Session)
    assert first.version == second.version == network.manifests[0]
    first.closed = True
    assert loaded.begun(Session).version == network.manifests[0], "the second one goes on; this one is gone"
    assert is_of(0)
    second.closed = True
    assert loaded.begun(Session).version == network.manifests[1]
    assert is_of(1)
    assert told == ["step 1 is used from now on"]


def test_a_newer_version_whose_ends_nobody_gives_is_left_for_later(network: Network) -> None:
    told = list[str]()
    loaded = Loaded(network, None, told.append)  # type: ignore[arg-type]
    loaded.make(lambda length: SimpleNamespace())
    network.newest, network.missing = 1, True
    assert loaded.begun(Session).version == network.manifests[0]
    assert told == ["step 0 is used still: nobody gives it"]
    network.missing = False
    assert loaded.begun(Session).version == network.manifests[1]
