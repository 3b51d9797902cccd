"""Who decided on the last step is gone, or has forgotten it: the run goes on. Real processes."""

import shutil
from pathlib import Path

import pytest

from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Joined, Left, StepDone
from tests.swarm.harness import Peer, Swarm, assert_ledger_sums, processes_of, wait_until
from tests.tiny import tiny_run

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
PAUSE = {"TINY_PAUSE": "0.1"}
RESET_SECONDS = 60.0
"""Without a sign of the voters, until the coordinator goes on without them."""


def a_run(name: str) -> RunConfig:
    return tiny_run(name, global_batch=32)


def kill(peer: Peer) -> None:
    peer.worker.kill()
    wait_until(lambda: not processes_of(peer.worker.pid), f"a process of {peer.name} is left")


def taken_with(coordinator: Peer, volunteer: Peer, after: int) -> StepDone:
    """The first step after this one that counts this volunteer's samples."""
    who = volunteer.joined.peer
    return coordinator.wait_for(StepDone, lambda event: event.step.step > after and who in event.contributions)


def end(swarm: Swarm, coordinator: Peer, *volunteers: Peer) -> None:
    """All leave; the ledger sums up."""
    for peer in volunteers:
        peer.worker.stop()
        peer.wait_for(Left)
    coordinator.worker.stop()
    assert_ledger_sums(coordinator, swarm.run.global_batch)


def test_the_only_volunteer_leaves_without_a_word_and_another_one_goes_on(tmp_path: Path) -> None:
    with Swarm(a_run("alone"), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        first = swarm.volunteer("first", PAUSE, microbatch=2)
        coordinator.wait_for_step(3)
        kill(first)
        last = coordinator.steps[-1].step
        second = swarm.volunteer("second", PAUSE, microbatch=2)
        second.wait_for(Joined)
        again = taken_with(coordinator, second, last.step).step
        assert again.step == last.step + 1
        assert again.time - last.time < RESET_SECONDS + 60.0, "the volunteer's start took some of it"
        coordinator.wait_for_step(again.step + 3)
        end(swarm, coordinator, second)


def test_the_only_volunteer_says_goodbye_and_another_one_goes_on_without_waiting(tmp_path: Path) -> None:
    with Swarm(a_run("goodbye"), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        first = swarm.volunteer("first", PAUSE, microbatch=2)
        coordinator.wait_for_step(3)
        assert first.worker.stop() == 0
        last = coordinator.steps[-1].step
        second = swarm.volunteer("second", PAUSE, microbatch=2)
        again = taken_with(coordinator, second, last.step).step
        assert again.step == last.step + 1
        coordinator.wait_for_step(again.step + 3)
        end(swarm, coordinator, second)


@pytest.mark.parametrize(
    "lost", ["nothing", "the newest checkpoints", "its chain", "its chain and the newest checkpoints"]
)
def test_a_coordinator_that_returns_goes_on_where_the_volunteers_are(tmp_path: Path, lost: str) -> None:
    with Swarm(a_run("returns"), tmp_path) as swarm:
        first = swarm.coordinator(checkpoint_every=1, keep_checkpoints=100)
        one, two = (swarm.volunteer(name, PAUSE, microbatch=2) for name in ("one", "two"))
        for peer in (one, two):
            peer.wait_for_step(4)
        kill(first)
        known = first.steps[-1].step.step
        for peer in (one, two):
            peer.wait_for_step(known + 3)
        if "checkpoints" in lost:
            for path in sorted((first.config.folder / "checkpoints").glob("step-*.safetensors"))[2:]:
                path.unlink()
        if "chain" in lost:
            shutil.rmtree(first.config.folder / "agreement")
        second = swarm.coordinator(checkpoint_every=1, keep_checkpoints=100)
        before = max(peer.steps[-1].step.step for peer in (one, two))
        for peer in (one, two):
            taken_with(second, peer, before)
        end(swarm, second, one, two)


def test_a_coordinator_without_its_chain_and_newest_checkpoint_returns_while_nobody_is_there(tmp_path: Path) -> None:
    with Swarm(a_run("nobody"), tmp_path) as swarm:
        first = swarm.coordinator(checkpoint_every=1, keep_checkpoints=100)
        one = swarm.volunteer("one", PAUSE, microbatch=2)
        first.wait_for_step(4)
        kill(one)
        kill(first)
        for path in sorted((first.config.folder / "checkpoints").glob("step-*.safetensors"))[2:]:
            path.unlink()
        shutil.rmtree(first.config.folder / "agreement")
        second = swarm.coordinator(checkpoint_every=1, keep_checkpoints=100)
        two = swarm.volunteer("two", PAUSE, microbatch=2)
        taken_with(second, two, second.joined.step)
        second.wait_for_step(second.joined.step + 3)
        end(swarm, second, two)


def test_two_volunteers_go_on_while_the_coordinator_is_away(tmp_path: Path) -> None:
    with Swarm(a_run("away"), tmp_path) as swarm:
        first = swarm.coordinator()
        one, two = (swarm.volunteer(name, PAUSE, microbatch=2) for name in ("one", "two"))
        for peer in (one, two):
            peer.wait_for_step(3)
        kill(first)
        known = first.steps[-1].step.step
        for peer in (one, two):
            peer.wait_for_step(known + 10)
        second = swarm.coordinator()
        newest = max(peer.steps[-1].step.step for peer in (one, two))
        for peer in (one, two):
            taken_with(second, peer, newest)
        end(swarm, second, one, two)
