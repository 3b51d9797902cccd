"""`run rollback` in a real swarm: all go back to the same state, and nobody is lost on the way."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dedloc_kit.events import Left, Peers, StepDone, Warned
from dedloc_kit.learning.train.state import checkpoint
from dedloc_kit.learning.train.state.orders import RATE, REWOUND
from dedloc_kit.ledger import Ledger
from dedloc_kit.steering.orders import OrderBook
from tests.swarm.harness import Peer, Swarm, difference, processes_of, wait_until
from tests.tiny import tiny_run

PAUSE = {"TINY_PAUSE": "0.1"}


def order(coordinator: Peer, step: int, rate: float, after: int) -> None:
    OrderBook(coordinator.config.folder).rollback(step, rate, after)


def taken(peer: Peer, after: int = 0) -> int:
    """The number of the first step from here on that took over a state."""
    return peer.wait_for(StepDone, lambda event: event.step.step > after and not event.step.peers).step.step


def finish(coordinator: Peer, *volunteers: Peer) -> None:
    """Let all end with the same step."""
    OrderBook(coordinator.config.folder).finish()
    for peer in volunteers:
        peer.wait_for(Left)


def kept(coordinator: Peer, step: int) -> dict[str, Tensor]:
    return checkpoint.load(coordinator.config.folder / "checkpoints" / f"step-{step:08d}.safetensors")[0]


def assert_one_history(coordinator: Peer, *rewound: int) -> None:
    ledger = Ledger(coordinator.config.folder / "ledger.sqlite", read_only=True)
    steps = ledger.steps()
    assert [step.step for step in steps] == list(range(1, len(steps) + 1)), "no gap and no step twice"
    assert [step.step for step in steps if not step.samples] == list(rewound)
    assert all(sum(ledger.contributions_of(step.step).values()) == step.samples for step in steps)
    assert sum(giver.samples for giver in ledger.contributors()) == sum(step.samples for step in steps)
    ledger.close()


@pytest.mark.soak
def test_all_take_over_a_checkpoint_with_the_same_step_and_so_does_who_comes_late(tmp_path: Path) -> None:
    averaging = {"mode": "local-steps", "local_batch": 8}  # the tests below do without
    with Swarm(tiny_run(global_batch=64, averaging=averaging), tmp_path) as swarm:
        coordinator = swarm.coordinator(checkpoint_every=1, keep_checkpoints=100)
        volunteers = [swarm.volunteer(name, PAUSE, microbatch=4) for name in ("one", "two")]
        for peer in volunteers:
            peer.wait_for_step(4)
        order(coordinator, 2, 0.5, coordinator.steps[-1].step.step)
        first = taken(coordinator)
        for peer in volunteers:
            peer.wait_for_step(first + 1)
            told = peer.wait_for(Warned, lambda event: "the organizer lets global step" in event.text)
            assert f"{first} take over an earlier state, with 0.5 times its learning rate" in told.text
        late = swarm.volunteer("late", PAUSE, microbatch=4)
        together = late.wait_for(StepDone, lambda event: len(event.contributions) == 3)

        order(coordinator, first, 0.5, coordinator.steps[-1].step.step)
        second = taken(coordinator, first)
        assert second > together.step.step
        for peer in (*volunteers, late):
            peer.wait_for_step(second + 2)
        coordinator.wait_for_step(second + 2)
        finish(coordinator, *volunteers, late)
    before, after, newest = kept(coordinator, 2), kept(coordinator, first), kept(coordinator, second + 2)
    for name, tensor in before.items():
        if not name.startswith("rewind"):
            assert torch.equal(tensor, after[name]), f"{name} is that of the checkpoint"
    assert [float(state[RATE]) for state in (before, after, newest)] == [1.0, 0.5, 0.25]
    assert [int(state[REWOUND]) for state in (before, after, newest)] == [0, first, second]
    assert_one_history(coordinator, first, second)
    for peer in (*volunteers, late):
        assert difference(coordinator.parameters(), peer.parameters()) < 1e-5


@pytest.mark.soak
@pytest.mark.parametrize("rate", [1e20, 1e38], ids=["finite-parameters", "infinite-parameters"])
def test_a_run_that_has_diverged_at_once_begins_again_with_a_rate_that_it_can_bear(tmp_path: Path, rate: float) -> None:
    mad = {"learning_rate": rate, "warmup_steps": 0, "total_steps": 1000}
    with Swarm(tiny_run(global_batch=32, optimizer=mad), tmp_path) as swarm:
        coordinator = swarm.coordinator(checkpoint_every=1, evaluate_every=5)
        volunteers = [swarm.volunteer(name, {"TINY_PAUSE": "0.02"}, microbatch=4) for name in ("one", "two")]
        coordinator.wait_for(Peers, lambda event: "has diverged" in event.problem)
        order(coordinator, 0, 0.01 / rate, coordinator.steps[-1].step.step)
        step = taken(coordinator)
        for peer in volunteers:
            peer.wait_for_step(step + 20)
        told = [event for event in coordinator.events if isinstance(event, Peers)]
        assert told[-1].problem == ""
        steps = coordinator.wait_for_step(step + 20).step
        assert steps.loss is not None
        assert steps.loss < 2.0
    assert_one_history(coordinator, step)


@pytest.mark.soak
def test_an_order_that_is_given_while_the_coordinator_is_down_is_done_when_it_is_back(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=64), tmp_path) as swarm:
        first = swarm.coordinator(checkpoint_every=1, keep_checkpoints=100)
        volunteers = [swarm.volunteer(name, PAUSE, microbatch=4) for name in ("one", "two")]
        for peer in volunteers:
            peer.wait_for_step(3)
        first.worker.kill()
        wait_until(lambda: not processes_of(first.worker.pid), "a process of the coordinator is left")
        newest = first.steps[-1].step.step
        order(first, 2, 0.5, newest)
        for peer in volunteers:
            peer.wait_for_step(newest + 3)

        second = swarm.coordinator(checkpoint_every=1, keep_checkpoints=100)
        numbers = [peer.wait_for(StepDone, lambda event: not event.step.peers).step.step for peer in volunteers]
        end = second.wait_for_step(max(numbers) + 2).step.step
        finish(second, *volunteers)
    assert numbers[0] == numbers[1] > newest + 3
    assert (float(kept(second, end)[RATE]), int(kept(second, end)[REWOUND])) == (0.5, numbers[0])
    assert_one_history(second, numbers[0])
    for peer in volunteers:
        assert difference(second.parameters(), peer.parameters()) < 1e-5
