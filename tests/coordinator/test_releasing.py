"""The coordinator hands out a run's model in versions, two at most, and no faster than its servers take them."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dedloc_kit.blocks.weights.manifest import Manifest
from dedloc_kit.config.machine import CoordinatorConfig
from dedloc_kit.coordinator import releasing
from dedloc_kit.coordinator.releasing import Releasing
from dedloc_kit.learning.task import Usage
from dedloc_kit.learning.train.optim.lamb import Lamb
from dedloc_kit.learning.train.state.state import TrainingState
from dedloc_kit.records.steps import Receipt
from dedloc_kit.serving.config import ModelVersion
from dedloc_kit.swarm.network.kinds import RELEASE
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.serving.layers.versions import contents
from dedloc_kit.swarm.transfer.store import Store
from tests.blocks import tiny
from tests.swarm.harness import PlainDHT, a_signer, wait_until
from tests.swarm.serving.layers.test_versions import offer
from tests.tiny import TinyTask, tiny_run

RUN = tiny_run()
STRANGER = a_signer(2)


class Exported(TinyTask):
    """It writes a language model that its parameters decide."""

    def export(self, model: torch.nn.Module, folder: Path, repository: str) -> Usage:
        whole = tiny.model("Llama", num_hidden_layers=1)
        whole.lm_head.weight[0] = sum(float(values.sum()) for values in model.parameters())
        whole.save_pretrained(folder)
        return Usage("transformers", "text-generation", "")


class Coordinator:
    """What hands out versions sees of one."""

    def __init__(self, folder: Path) -> None:
        self.dht, self.store, self.lost = PlainDHT(), Store(folder / "served"), set[int]()
        task = Exported(RUN)
        self.state = TrainingState(task.model(), lambda m: Lamb(task.groups(m), lr=0.1), RUN)
        optimizer = SimpleNamespace(state=self.state, tracker=SimpleNamespace(reject=print))
        me: Any = SimpleNamespace(dht=self.dht, signer=a_signer(1), task=task, optimizer=optimizer)
        peer = CoordinatorConfig(folder=folder, serve_every=2)
        self.releasing = Releasing(RUN, peer, me, self.store, self.lost.__contains__)

    def step(self, step: int) -> None:
        average = torch.full((self.state.layout.size,), 0.1)
        self.state.apply(average, Receipt(step=step, round=f"{step:04x}", time=0.0, seconds=0.0, record=b""))
        self.releasing.step_done(step)

    @property
    def versions(self) -> list[ModelVersion]:
        """As it says, the newest first, out of what it gives."""
        said = self.dht.keys.get(RELEASE.key(Names(RUN.run_id)), {})
        found = []
        for entry in said.values():
            for digest in entry.value["versions"]:
                part = self.store.find(digest)
                assert part is not None
                found.append(ModelVersion.from_json(part.read(0, part.size)))
        return found

    def names(self) -> list[str]:
        return [version.model.rpartition(" ")[2] for version in self.versions]

    def are(self, names: list[str]) -> bool:
        return self.names() == names

    def serves(self, version: ModelVersion) -> None:
        """A server says so."""
        said = {**offer(0, 1, version).model_dump(), "run_id": RUN.run_id}
        self.dht.store(Names(RUN.run_id).records("serving"), STRANGER.subkey, said, time.time() + 60.0)


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    monkeypatch.setattr(releasing, "LOOK_SECONDS", 0.01)
    coordinator = Coordinator(tmp_path)
    yield coordinator
    coordinator.releasing.close()


def test_the_newest_two_versions_are_there_whole_and_nothing_of_those_before(coordinator: Coordinator) -> None:
    for step, names in ((1, ["1"]), (2, ["2", "1"]), (4, ["4", "2"])):
        coordinator.step(step)
        wait_until(partial(coordinator.are, names), f"not {names}")
    wait_until(lambda: not (coordinator.store.folder.parent / ".release").exists(), "its files are left")

    def kept() -> set[str]:
        return {path.name for path in coordinator.store.folder.iterdir()}

    named = set[str]()
    for version in coordinator.versions:
        part = coordinator.store.find(version.manifest)
        assert part is not None
        named |= contents(version, Manifest.from_json(part.read(0, part.size)))
    wait_until(lambda: kept() == named, "something is missing or of a version before")
    assert all(coordinator.store.holds(digest) for digest in kept())
    assert len({version.manifest for version in coordinator.versions}) == 2


def test_between_two_versions_lie_so_many_steps_and_a_lost_state_is_none(coordinator: Coordinator) -> None:
    coordinator.step(2)
    wait_until(lambda: coordinator.names() == ["2"], "no first version")
    coordinator.step(3)
    time.sleep(0.1)
    assert coordinator.names() == ["2"]
    coordinator.lost.add(4)
    coordinator.step(4)
    coordinator.releasing.release_soon()
    time.sleep(0.1)
    assert coordinator.names() == ["2"]
    coordinator.step(6)
    wait_until(lambda: coordinator.names() == ["6", "2"], "no further version")


def test_the_next_version_waits_for_servers_to_change_but_not_for_ever(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.step(2)
    wait_until(lambda: coordinator.names() == ["2"], "no first version")
    coordinator.serves(ModelVersion(model="x", config={}, manifest="ab" * 32))
    coordinator.step(4)
    time.sleep(0.2)
    assert coordinator.names() == ["2"]
    coordinator.serves(coordinator.versions[0])
    wait_until(lambda: coordinator.names() == ["4", "2"], "it waits although all have changed")
    coordinator.step(6)
    time.sleep(0.2)
    assert coordinator.names() == ["4", "2"]
    monkeypatch.setattr(releasing, "CHANGE_SECONDS", 0.0)
    wait_until(lambda: coordinator.names() == ["6", "4"], "it waits for ever")
