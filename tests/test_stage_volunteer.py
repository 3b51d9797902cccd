"""A run in stages trains as one process does, whoever comes and goes."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from dedloc_kit.events import Left
from dedloc_kit.run import RunConfig
from tests.swarm.harness import Peer, Swarm, difference
from tests.tiny import tiny_run
from tests.tiny_stages import LENGTH, TOLD, plain_loop

STAGES, STEPS, BATCH, ROWS = 3, 5, 24, 2
SETTINGS: dict[str, Any] = {"task_module": "tests.tiny_stages", "until_step": STEPS}


def staged_run(**pipeline: Any) -> RunConfig:
    return tiny_run(
        "staged",
        BATCH,
        task={"name": "tiny-stages"},
        pipeline={"stages": STAGES, "activations": "none", "microbatch_tokens": ROWS * LENGTH, **pipeline},
        averaging={"overlap": False, "compression": "none"},
    )


class Staged:
    """A coordinator and two volunteers in each stage, `0a`, `0b`, `1a`, ..."""

    def __init__(self, folder: Path) -> None:
        self.run, self.folder = staged_run(), folder
        self.told = folder / "told"
        self.told.mkdir()
        self.swarm = Swarm(self.run, folder)
        self.coordinator = self.swarm.coordinator(**SETTINGS)
        self.start = folder / "start"
        self.peers = {f"{stage}{letter}": self.add(f"{stage}{letter}") for letter in "ab" for stage in range(STAGES)}

    def add(self, name: str, **settings: Any) -> Peer:
        environment = {TOLD: str(self.told), "START_FILE": str(self.start)}
        return self.swarm.volunteer(name, environment, stage=int(name[0]), **SETTINGS, **settings)

    def batches(self, steps: int) -> list[list[dict[str, torch.Tensor]]]:
        """Of each global step, as the stages have added them; each of them has the same."""
        added: list[dict[tuple[int, str, int], dict[str, Any]]] = [{} for _ in range(STAGES)]
        for file in self.told.glob("*.jsonl"):
            for line in map(json.loads, file.read_text().splitlines()):
                added[line["stage"]][line["step"], line["driver"], line["number"]] = line
        first, *_, last = added
        keys = [key for key in sorted(first) if key[0] < steps]
        for others in added[1:]:
            assert [key for key in sorted(others) if key[0] < steps] == keys, "every stage has the same microbatches"
        found: dict[int, list[dict[str, torch.Tensor]]] = defaultdict(list)
        for key in keys:
            ids, labels = first[key]["input_ids"], last[key]["labels"]
            found[key[0]].append({"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)})
        return [found[step] for step in range(steps)]


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Staged]:
    found = Staged(tmp_path)
    with found.swarm:
        yield found


def test_three_stages_of_two_peers_take_the_steps_of_one_process(staged: Staged) -> None:
    for peer in staged.peers.values():
        assert peer.joined.step == 0
    staged.start.touch()
    for peer in staged.peers.values():
        peer.wait_for(Left)
    staged.coordinator.wait_for_step(STEPS)
    assert staged.coordinator.worker.stop() == 0
    steps = staged.coordinator.steps
    batches = staged.batches(STEPS)
    assert [event.step.samples for event in steps] == [ROWS * len(each) for each in batches]
    assert all(event.step.samples >= BATCH for event in steps)
    expected, found = plain_loop(staged.run, batches), staged.coordinator.parameters()
    assert difference(found, expected) < 1e-5
    for name, peer in staged.peers.items():
        begin = f"stages.{name[0]}."
        own = {name.removeprefix(begin): each for name, each in found.items() if name.startswith(begin)}
        assert difference(peer.parameters(), own) == 0.0
