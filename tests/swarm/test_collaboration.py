"""Volunteers with all their faults train one model: real processes on loopback."""

from pathlib import Path

import pytest
import torch

from dedloc_kit.events import Evaluated, Left, LocalProgress, StepDone, Warned
from dedloc_kit.learning.train.state.checkpoint import load
from tests.swarm.harness import Swarm, assert_ledger_sums, difference, processes_of, wait_until
from tests.tiny import tiny_run

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="of PyTorch 2.9")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mode", "optimizer", "rate"),
    [
        ("global-batch", "lamb", 0.01),
        pytest.param("local-steps", "lamb", 0.01, marks=pytest.mark.soak),
        # Its steps do not shrink with the gradient: large ones overshoot where slow rounds leave time for many of them.
        pytest.param("local-steps", "muon", 0.002, marks=[pytest.mark.soak, needs_muon]),
    ],
)
def test_overlapped_and_compressed_clients_end_with_the_same_bits_as_the_coordinator(
    tmp_path: Path, mode: str, optimizer: str, rate: float
) -> None:
    steps = 8
    run = tiny_run(
        global_batch=64,
        averaging={"mode": mode, "local_batch": 8},  # overlap and 4 bits are the defaults
        optimizer={"name": optimizer, "learning_rate": rate, "warmup_steps": 0, "total_steps": 1000},
    )
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=steps, evaluate_every=4)
        volunteers = [
            # Nobody can reach the clients: with them and the coordinator alone hivemind corrupts the training.
            swarm.volunteer(f"v{n}", {"TINY_PAUSE": "0.05"}, microbatch=n, client_mode=True, until_step=steps)
            for n in (2, 3)
        ]
        for peer in volunteers:
            peer.wait_for(Left)
            assert peer.joined.addresses == ()
        coordinator.wait_for_step(steps)
        coordinator.worker.stop()
    for peer in volunteers:
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
    assert_ledger_sums(coordinator, run.global_batch)
    losses = [event.loss for event in coordinator.events if isinstance(event, Evaluated)]
    assert losses[-1] < losses[0]


@pytest.mark.soak
def test_a_newcomer_to_a_state_of_8_bits_ends_with_the_same_bits_as_the_others(tmp_path: Path) -> None:
    steps, hold = 6, tmp_path / "hold"
    optimizer = {"learning_rate": 0.01, "warmup_steps": 0, "total_steps": 1000, "state_dtype": "8bit"}
    run = tiny_run(global_batch=64, task={"name": "tiny", "hidden": 1100}, optimizer=optimizer)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=steps)
        pause = {"TINY_PAUSE": "0.05", "TINY_HOLD": str(hold)}
        volunteer = swarm.volunteer("volunteer", pause, microbatch=2, until_step=steps)
        coordinator.wait_for_step(2)
        hold.touch()  # the run shall not be over before the newcomer has come
        newcomer = swarm.volunteer("newcomer", {"TINY_PAUSE": "0.05"}, microbatch=2, until_step=steps)
        assert newcomer.joined.step >= 2, "it has loaded the state"
        hold.unlink()
        for peer in (volunteer, newcomer):
            peer.wait_for(Left)
        coordinator.wait_for_step(steps)
        coordinator.worker.stop()
    for peer in (volunteer, newcomer):
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
    saved, _ = load(coordinator.config.folder / "checkpoints" / f"step-{steps:08d}.safetensors")
    assert sum(tensor.dtype == torch.int8 for tensor in saved.values()) == 2, "of two large matrices"


@pytest.mark.soak
def test_a_peer_whose_loss_turns_nan_skips_that_microbatch_and_says_so(tmp_path: Path) -> None:
    steps = 3
    run = tiny_run(global_batch=32, averaging={"overlap": False, "compression": "none"})
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=steps)
        together = {"TINY_PAUSE": "0.05", "START_FILE": str(tmp_path / "start")}
        sick = swarm.volunteer("sick", {"TINY_NAN_AT": "3", **together}, microbatch=2, until_step=steps)
        healthy = swarm.volunteer("healthy", together, microbatch=2, until_step=steps)
        assert sick.joined.step == healthy.joined.step == 0
        (tmp_path / "start").touch()
        warning = sick.wait_for(Warned)
        assert "a microbatch was skipped" in warning.text
        for peer in (sick, healthy):
            peer.wait_for(Left)
        coordinator.wait_for_step(steps)
        coordinator.worker.stop()
    assert len(coordinator.steps[0].contributions) == 2, "the rest of its samples count"
    for peer in (coordinator, sick, healthy):
        assert all(bool(parameter.isfinite().all()) for parameter in peer.parameters().values())
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
    assert_ledger_sums(coordinator, run.global_batch)


@pytest.mark.real
def test_one_joins_one_is_killed_and_one_leaves_and_no_step_is_lost(tmp_path: Path) -> None:
    run = tiny_run(global_batch=64, averaging={"compression": "none"})
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        pause = {"TINY_PAUSE": "0.1"}
        stays, killed, leaves = (swarm.volunteer(name, pause, microbatch=2) for name in ("stays", "killed", "leaves"))
        coordinator.wait_for_step(2)

        newcomer = swarm.volunteer("newcomer", pause, microbatch=2)
        assert newcomer.joined.step >= 2, "it contributes nothing before it holds the state"
        first = coordinator.wait_for(StepDone, lambda event: newcomer.joined.peer in event.contributions)
        assert first.step.step > newcomer.joined.step

        def accumulating(event: LocalProgress) -> bool:
            return event.step == killed.steps[-1].step.step and event.samples >= 4

        killed.wait_for(LocalProgress, accumulating)
        killed.worker.kill()
        wait_until(lambda: not processes_of(killed.worker.pid), "a process of the killed volunteer is left")
        after_death = coordinator.wait_for_step(coordinator.steps[-1].step.step + 2)
        assert killed.joined.peer not in after_death.contributions

        assert leaves.worker.stop() == 0
        left = leaves.wait_for(Left)
        after_leaving = coordinator.wait_for_step(max(left.step, coordinator.steps[-1].step.step) + 2)
        assert set(after_leaving.contributions) <= {stays.joined.peer, newcomer.joined.peer}

        for peer in (stays, newcomer):  # both at once: who is left alone would go on
            peer.worker.leave()
        for peer in (stays, newcomer):
            peer.worker.stop()
        coordinator.worker.stop()
        ends = {peer.name: peer.wait_for(Left).step for peer in (coordinator, stays, newcomer)}
        assert max(ends.values()) - min(ends.values()) <= 1
    for peer in (stays, newcomer):
        rounds = {event.step.step: event.step.round for event in peer.steps}
        theirs = {event.step.step: event.step.round for event in coordinator.steps}
        assert all(theirs[step] == round_id for step, round_id in rounds.items() if step in theirs)
        saved, _ = load(coordinator.config.folder / "checkpoints" / f"step-{ends[peer.name]:08d}.safetensors")
        model = {name.removeprefix("model."): saved[name] for name in saved if name.startswith("model.")}
        assert difference(peer.parameters(), model) == 0.0, "the same bits as the coordinator had at that step"
    assert_ledger_sums(coordinator, run.global_batch)
