"""A run in stages outlives its coordinator, goes back as one, ends with a decay and is published."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_bytes
from torch import Tensor

from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Left, State, StepDone
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.orders import DECAY_START, RATE, REWOUND
from dedloc_kit.records.state import STATE_FILE
from dedloc_kit.steering.orders import OrderBook
from tests.loopback_hub import loopback_hub
from tests.swarm.harness import Peer, Swarm, difference, ledger_of, processes_of, wait_until
from tests.tiny import tiny_run
from tests.tiny_stages import LENGTH

STAGES, PEERS, DECAY, NAME = 2, 2, 4, "organizer/staged"
"""`PEERS` of each stage; `DECAY` in steps."""
TASK: dict[str, Any] = {"task_module": "tests.tiny_stages"}


def staged_run() -> RunConfig:
    return tiny_run(
        "staged",
        24,
        task={"name": "tiny-stages"},
        pipeline={"stages": STAGES, "activations": "none", "microbatch_tokens": 2 * LENGTH},
        averaging={"overlap": False, "compression": "none"},
        optimizer={"schedule": "warmup-stable-decay", "learning_rate": 0.01, "warmup_steps": 0, "total_steps": 10**6},
    )


def kept(coordinator: Peer) -> list[int]:
    """The steps whose checkpoints are there."""
    folder = coordinator.config.folder / "checkpoints"
    return sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.safetensors"))


def state(coordinator: Peer, step: int) -> dict[str, Tensor]:
    return checkpoint.load(coordinator.config.folder / "checkpoints" / f"step-{step:08d}.safetensors")[0]


def of_all_stages(tensors: dict[str, Tensor], name: str) -> list[float]:
    return [float(tensors[f"stage{number}.{name}"]) for number in range(STAGES)]


@pytest.mark.soak
def test_volunteers_go_on_without_the_coordinator_and_all_stages_go_back_and_end_with_the_same_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {**TASK, "checkpoint_every": 1, "keep_checkpoints": 1000}
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub, Swarm(staged_run(), tmp_path) as swarm:
        first = swarm.coordinator(**settings)
        names = [f"{stage}{letter}" for stage in range(STAGES) for letter in "ab"[:PEERS]]
        volunteers = [swarm.volunteer(name, stage=int(name[0]), **TASK) for name in names]
        first.wait_for_step(2)
        for peer in volunteers:  # one that took its last step with the coordinator alone waits for that for a minute
            peer.wait_for(StepDone, lambda event: event.step.peers == 1 + PEERS)
        first.worker.kill()
        wait_until(lambda: not processes_of(first.worker.pid), "a process of the coordinator is left")
        newest, earliest = first.steps[-1].step.step, kept(first)[0]
        OrderBook(first.config.folder).rollback(earliest, 0.5, newest)
        for peer in volunteers:
            peer.wait_for_step(newest + 2)

        second = swarm.coordinator(**settings, hub=NAME, push_every=1, stages_memory=0.0)
        numbers = [peer.wait_for(StepDone, lambda event: not event.step.peers).step.step for peer in volunteers]
        second.wait_for_step(max(numbers) + 1)
        OrderBook(second.config.folder).cooldown(DECAY, second.steps[-1].step.step)
        ends = [peer.wait_for(Left).step for peer in volunteers]
        second.wait_for(State, lambda event: "was the last one" in event.text)
        assert second.worker.stop() == 0
        pushed = load_bytes(hub.files(NAME)[STATE_FILE])
    assert len(set(numbers)) == 1
    assert len(set(ends)) == 1
    before, after, last = (state(second, step) for step in (earliest, numbers[0], ends[0]))
    for name, tensor in before.items():
        if ".rewind." not in name:
            assert torch.equal(tensor, after[name]), f"{name} is that of the checkpoint"
    assert of_all_stages(last, RATE) == [0.5] * STAGES
    assert of_all_stages(last, REWOUND) == [numbers[0]] * STAGES
    assert all(of_all_stages(last, DECAY_START)), "each stage has heard of it, also after another one has begun"
    assert pushed.keys() == last.keys()
    assert all(torch.equal(pushed[name], tensor) for name, tensor in last.items())
    exported = second.parameters()
    for name, peer in zip(names, volunteers, strict=True):
        begin = f"stages.{name[0]}."
        own = {each.removeprefix(begin): tensor for each, tensor in exported.items() if each.startswith(begin)}
        assert difference(peer.parameters(), own) == 0.0
    ledger = ledger_of(second)
    steps = ledger.steps()
    assert [step.step for step in steps if step.step >= numbers[0]] == list(range(numbers[0], ends[0] + 1))
    assert [step.step for step in steps if not step.samples] == [numbers[0]]
    given = sum(giver.samples for giver in ledger.contributors())
    assert given >= sum(step.samples for step in steps), "what was given to steps that it was too late for counts too"
    ledger.close()
