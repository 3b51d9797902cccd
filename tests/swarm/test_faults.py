"""Faults in mid-training, injected by name into real processes: survivors lose no samples, and everyone gets back."""

import os
import signal
from pathlib import Path

import pytest
from hivemind.utils import get_dht_time

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Joined, Left, LocalProgress, StepDone, Warned
from dedloc_kit.swarm.network.identity import Signer
from tests.hang import HANG
from tests.identities import an_identity
from tests.swarm.harness import (
    Peer,
    Swarm,
    assert_ledger_sums,
    difference,
    gate_of,
    ledger_of,
    open_node,
    processes_of,
    progress,
    wait_until,
)
from tests.tiny import tiny_run

pytestmark = pytest.mark.soak
PAUSE = {"TINY_PAUSE": "0.1"}


def a_run(name: str) -> RunConfig:
    return tiny_run(name, global_batch=64)  # overlapped and compressed, the defaults


def assert_no_samples_lost(*peers: Peer) -> None:
    for peer in peers:
        assert not [e.text for e in peer.events if isinstance(e, Warned) and "dropped" in e.text], peer.name


def assert_credited_what_was_averaged(coordinator: Peer, *peers: Peer) -> None:
    """The ledger has all of a peer's samples that went into steps up to the coordinator's last one, and no others."""
    ledger = ledger_of(coordinator)
    last = ledger.steps()[-1].step
    for peer in peers:
        mine = peer.joined.peer
        own = {e.step.step: e.contributions.get(mine, 0) for e in peer.steps if e.step.step <= last}
        assert own == {step: ledger.contributions_of(step).get(mine, 0) for step in own}
    ledger.close()


@pytest.mark.real
def test_a_volunteer_that_stalls_in_the_middle_of_an_all_reduce_costs_the_others_no_samples_and_is_back_in_the_end(
    tmp_path: Path,
) -> None:
    run = a_run("stalls")
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        victim = swarm.volunteer("victim", {**PAUSE, "TINY_FAULT": "stalls in step 3"}, microbatch=2)
        survivors = [swarm.volunteer(name, PAUSE, microbatch=2) for name in ("one", "two")]
        victim.wait_for_step(2)
        # A step without the victim is no sign: on a loaded machine it may just have come too late for one.
        gone = "a process of the victim still runs"
        wait_until(lambda: not processes_of(victim.worker.pid, besides="ZT"), gone, HANG)
        before = coordinator.steps[-1].step.step
        coordinator.wait_for(StepDone, lambda e: e.step.step > before + 2)
        os.killpg(victim.worker.pid, signal.SIGCONT)
        back = coordinator.steps[-1].step.step
        again = coordinator.wait_for(StepDone, lambda e: e.step.step > back and victim.joined.peer in e.contributions)
        assert again.step.samples >= run.global_batch
        for peer in survivors:
            peer.worker.stop()
        coordinator.worker.stop()
    assert_no_samples_lost(*survivors)
    assert_ledger_sums(coordinator, run.global_batch)
    assert_credited_what_was_averaged(coordinator, *survivors)


def test_a_peer_whose_parameters_have_drifted_finds_out_and_takes_the_others(tmp_path: Path) -> None:
    run = a_run("drifts")
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=8)
        sick = swarm.volunteer("sick", {**PAUSE, "TINY_FAULT": "drifts in step 3"}, microbatch=2, until_step=8)
        well = swarm.volunteer("well", PAUSE, microbatch=2, until_step=8)
        for peer in (sick, well):
            peer.wait_for(Left)
        coordinator.wait_for_step(8)
        coordinator.worker.stop()
    for peer in (sick, well):
        assert difference(peer.parameters(), coordinator.parameters()) == 0.0
    assert_no_samples_lost(sick, well)


def test_nonsense_in_the_directory_is_counted_reported_and_ignored(tmp_path: Path) -> None:
    run = a_run("nonsense")
    good = progress(run_id=run.run_id, step=0, round="", samples=0, name="liar").model_dump()
    lies = [
        {**good, "time": get_dht_time() + 1000},
        {**good, "run_id": "other-0123456789abcdef"},
        {**good, "samples": -5},
        {**good, "samples": 10**12},
        {"samples": 3},
        "nothing",
    ]
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        volunteer = swarm.volunteer("volunteer", PAUSE, microbatch=2)
        nodes = []
        try:
            for number, lie in enumerate(lies):
                identity = an_identity(tmp_path / f"liar-{number}" / "identity.key")
                config = PeerConfig(folder=tmp_path / f"liar-{number}", client_mode=True, swarm_host="127.0.0.1")
                node = open_node(config, identity, coordinator.joined.addresses, gate_of(identity, run.run_id))
                nodes.append(node)
                node.store(
                    f"{run.run_id}_progress",
                    subkey=Signer(identity).subkey,
                    value=lie,
                    expiration_time=get_dht_time() + 60,
                )
            # What no node keeps, only those know of that were asked to keep it.
            refused, unbelieved = ("of another run", "samples: ", "missing", "Progress"), ("from the future", "claims")
            for peer, reasons in ((coordinator, refused + unbelieved), (volunteer, unbelieved)):
                for reason in reasons:
                    peer.wait_for(Warned, lambda e, reason=reason: "ignored" in e.text and reason in e.text, 60.0)  # type: ignore[misc]
            coordinator.wait_for_step(coordinator.steps[-1].step.step + 2 if coordinator.steps else 2)
        finally:
            for node in nodes:
                node.shutdown()
        volunteer.worker.stop()
        coordinator.worker.stop()
    assert_ledger_sums(coordinator, run.global_batch)
    assert_no_samples_lost(volunteer)


def test_the_coordinator_of_clients_alone_dies_and_its_ledger_has_no_gap(tmp_path: Path) -> None:
    run = a_run("orphans")
    with Swarm(run, tmp_path) as swarm:
        first = swarm.coordinator()
        one, two = (swarm.volunteer(name, PAUSE, microbatch=2, client_mode=True) for name in ("one", "two"))
        for peer in (one, two):
            peer.wait_for(Joined)  # afterwards nobody is there through whom anyone could
        first.wait_for_step(3)
        first.worker.kill()
        wait_until(lambda: not processes_of(first.worker.pid), "a process of the coordinator is left")
        # Nobody but the clients holds what was done last, and they have nobody to go on with.
        newest = sorted((first.config.folder / "checkpoints").glob("step-*.safetensors"))[-1]
        newest.unlink()
        second = swarm.coordinator()
        assert second.joined.peer == first.joined.peer
        assert second.joined.addresses == first.joined.addresses
        again = second.wait_for_step(max(e.step.step for peer in (one, two) for e in peer.steps) + 2)
        assert again.contributions
        for peer in (one, two):
            peer.wait_for(LocalProgress, lambda e: e.step >= again.step.step)
            peer.worker.stop()
        second.worker.stop()
    assert_no_samples_lost(one, two)
    assert_ledger_sums(second, run.global_batch)
    assert_credited_what_was_averaged(second, one, two)
