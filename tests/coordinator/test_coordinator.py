"""The coordinator's memory: ledger and checkpoints survive its death."""

import json
import os
import shutil
import signal
import socket
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from dedloc_kit.coordinator.coordinator import public_addresses
from dedloc_kit.events import Evaluated, Failed, Peers, Pushed, PushFailed, Warned
from dedloc_kit.hub import training_state
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.known_peers import MEMORY_FILE, recall
from dedloc_kit.learning.train.state.checkpoint import Checkpoints
from dedloc_kit.ledger import Ledger
from dedloc_kit.ledger.recovery import opened
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.worker import coordinator_job
from tests.geoip import TITLE, write_countries
from tests.loopback_hub import loopback_hub
from tests.swarm.harness import Peer, Swarm, processes_of, progress, wait_until
from tests.tiny import tiny_run


@pytest.mark.real
def test_a_killed_coordinator_resumes_its_run_where_it_was(tmp_path: Path) -> None:
    run = tiny_run(global_batch=32)
    with Swarm(run, tmp_path) as swarm:
        first = swarm.coordinator()
        volunteer = swarm.volunteer("volunteer", {"TINY_PAUSE": "0.05"}, microbatch=4)
        first.wait_for_step(3)
        # The swarm dies with its coordinator, so that only the folder can know what was done.
        first.worker.kill()
        volunteer.worker.kill()
        wait_until(lambda: not processes_of(first.worker.pid), "a process of the coordinator is left")
        done = first.steps[-1].step.step

        second = swarm.coordinator()
        assert second.joined.peer == first.joined.peer, "it has the same identity"
        assert done <= second.joined.step <= done + 1, "a step may have been done without being told"
        swarm.volunteer("volunteer", {"TINY_PAUSE": "0.05"}, microbatch=4)
        end = second.joined.step + 2
        second.wait_for_step(end)
    ledger = Ledger(tmp_path / "coordinator" / "ledger.sqlite", read_only=True)
    steps = ledger.steps()
    assert [step.step for step in steps] == list(range(1, len(steps) + 1)), "no gap and no step twice"
    assert len(steps) >= end
    assert sum(contributor.samples for contributor in ledger.contributors()) == sum(step.samples for step in steps)
    ledger.close()


@pytest.mark.soak
def test_a_coordinator_that_slept_through_some_steps_has_them_in_its_ledger(tmp_path: Path) -> None:
    run = tiny_run(global_batch=64)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        volunteers = [swarm.volunteer(name, {"TINY_PAUSE": "0.2"}, microbatch=4) for name in ("one", "two")]
        coordinator.wait_for_step(2)
        os.killpg(coordinator.worker.pid, signal.SIGSTOP)
        slept = coordinator.steps[-1].step.step
        for peer in volunteers:
            peer.wait_for_step(slept + 3)
        os.killpg(coordinator.worker.pid, signal.SIGCONT)
        coordinator.wait_for_step(slept + 5)
    ledger = Ledger(tmp_path / "coordinator" / "ledger.sqlite", read_only=True)
    steps = ledger.steps()
    assert [step.step for step in steps] == list(range(1, len(steps) + 1)), "no gap"
    assert all(step.samples >= run.global_batch for step in steps)
    assert all(sum(ledger.contributions_of(step.step).values()) == step.samples for step in steps)
    assert sum(contributor.samples for contributor in ledger.contributors()) == sum(step.samples for step in steps)
    ledger.close()


@pytest.mark.soak
def test_who_was_sent_away_with_a_reason_is_in_the_ledger_until_the_organizer_lets_it_in_again(tmp_path: Path) -> None:
    with Swarm(tiny_run(), tmp_path) as swarm:
        folder = swarm.coordinator().config.folder
        book, ledger = OrderBook(folder), Ledger(folder / "ledger.sqlite", read_only=True)
        book.kick("QmByHand", "bo")
        book.kick("QmMallory", "mallory", "it lied (global step 3)")
        wait_until(lambda: ledger.sent_away() == {"QmMallory"}, "whom a check sent away is not in the ledger")
        book.unban("QmMallory", "mallory")
        wait_until(lambda: ledger.sent_away() == set(), "it is still away")
        count, (conviction,) = ledger.convictions()
        assert (count, conviction.name, conviction.why) == (1, "mallory", "it lied (global step 3)")
        ledger.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_of_two_coordinators_with_one_key_the_second_ends_and_the_first_tells_of_it(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        first = swarm.coordinator()
        before = swarm.volunteer("volunteer", {"TINY_PAUSE": "0.05"}, microbatch=4)
        first.wait_for_step(2)
        wait_until(lambda: len(recall(first.config.folder, swarm.run.run_id).peers) == 1, "no address is kept")
        assert before.worker.stop() == 0
        # As a backup or a cloned machine has it: the key, and whom to look for; of the first one nobody tells it yet.
        (tmp_path / "second").mkdir()
        for name in (IDENTITY_FILE, MEMORY_FILE):
            shutil.copy(first.config.folder / name, tmp_path / "second" / name)
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        second = Peer(
            "coordinator", "second", tmp_path, lambda config: coordinator_job(swarm.run, config), None, swarm_port=port
        )
        swarm.peers.append(second)
        assert second.joined.peer == first.joined.peer
        volunteer = swarm.volunteer("volunteer", {"TINY_PAUSE": "0.5"}, microbatch=4)
        ended = second.wait_for(Failed)
        assert "another coordinator is at work with a copy of this one's identity.key, and began before" in ended.text
        told = first.wait_for(Warned, lambda event: "a copy of this one's identity.key" in event.text)
        assert told.alert
        end = first.steps[-1].step.step + 3
        for peer in (first, volunteer):
            peer.wait_for_step(end)
        assert not any(isinstance(event, Failed) for event in first.events)


@pytest.mark.real
def test_the_curve_goes_from_start_to_end_and_the_ledger_knows_who_was_there_and_where_the_time_went(
    tmp_path: Path,
) -> None:
    regions = write_countries(tmp_path / "countries.mmdb", {"127.0.0.0/8": "BD"})
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=4, evaluate_every=2, regions=regions)
        swarm.volunteer("volunteer", {"TINY_PAUSE": "0.05"}, microbatch=8, team="delta", listed=True)
        coordinator.wait_for_step(4)
        coordinator.wait_for(Evaluated, lambda event: event.step == 4)
        coordinator.wait_for(Peers, lambda event: any(peer.upload for peer in event.peers))
        assert coordinator.worker.stop() == 0
    steps = [event.step for event in coordinator.events if isinstance(event, Evaluated)]
    assert steps[0] == 0
    assert steps[-1] == 4
    seen = [peer for event in coordinator.events if isinstance(event, Peers) for peer in event.peers]
    assert seen[0].team == "delta"
    told = [event for event in coordinator.events if isinstance(event, Peers)]
    assert ({"BD": 1}, TITLE) in [(event.countries, event.countries_title) for event in told]
    assert not any(event.listed for event in told), "the organizer did not say that it may be told where it is"
    ledger = Ledger(tmp_path / "coordinator" / "ledger.sqlite", read_only=True)
    (volunteer,) = ledger.people()
    assert (volunteer.team, volunteer.devices) == ("delta", (seen[0].device,))
    (visit,) = ledger.visits(10)
    assert 0 < visit.until - visit.since == volunteer.seconds
    assert visit.samples == volunteer.samples
    for before, step in pairwise(ledger.steps()):
        assert None not in (step.compute, step.gather, step.average, step.apply)
        parts = (step.compute or 0.0) + (step.gather or 0.0) + (step.average or 0.0) + (step.apply or 0.0)
        assert parts == pytest.approx(step.time - before.time, abs=0.2)
    ledger.close()


def test_only_who_agrees_is_listed_and_only_where_it_is_itself() -> None:
    def address(peer: str) -> str:
        return f"/ip4/192.0.2.1/tcp/31337/p2p/{peer}"

    others = {
        "Asha": progress(listed=True, addresses=(address("Asha"), address("Victim"))),
        "Olena": progress(addresses=(address("Olena"),)),
        "Client": progress(listed=True, client_mode=True),
    }
    assert public_addresses(others) == (address("Asha"),)


@pytest.mark.soak
def test_a_coordinator_that_leaves_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    with Swarm(tiny_run(), tmp_path) as swarm:
        held_up = swarm.coordinator({"TINY_EVALUATION": "60"})
        assert held_up.worker.stop() == 0


@pytest.mark.soak
def test_a_checkpoint_of_another_run_is_refused_with_the_fix(tmp_path: Path) -> None:
    with Swarm(tiny_run("one", global_batch=16), tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=1)
        swarm.volunteer("volunteer", microbatch=8)
        coordinator.wait_for_step(1)
        coordinator.worker.stop()
    with Swarm(tiny_run("two"), tmp_path) as swarm:
        failed = swarm.start_coordinator().wait_for(Failed)
        assert "belongs to the run one-" in failed.text
        assert "choose another --folder" in failed.text


@pytest.mark.soak
def test_a_run_is_pushed_while_it_goes_on_and_resumed_from_the_hub_with_its_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.failing.set()
        with Swarm(tiny_run(global_batch=32), tmp_path / "one") as swarm:
            first = swarm.coordinator(hub="us/model", push_every=1, evaluate_every=1, keep_checkpoints=1)
            volunteer = swarm.volunteer("volunteer", {"TINY_PAUSE": "0.05"}, microbatch=8)
            first.wait_for(PushFailed, lambda event: "is not on the Hub yet" in event.text)
            first.wait_for_step(first.steps[-1].step.step + 2)
            hub.failing.clear()
            first.wait_for(Pushed)
            volunteer.worker.stop()
            assert first.worker.stop() == 0
            last = first.steps[-1].step.step
            assert first.wait_for(Pushed, lambda event: event.step == last)
        given = json.loads(hub.files("us/model")["contributors.json"])
        assert sum(peer["samples"] for peer in given) == sum(event.step.samples for event in first.steps)
        with Swarm(swarm.run, tmp_path / "two") as swarm:
            second = swarm.coordinator(resume=training_state("us/model"))
            assert second.joined.step == last
            assert (second.config.folder / "checkpoints" / f"step-{last:08d}.safetensors").exists()
            assert second.worker.stop() == 0
    ledgers = [Ledger(peer.config.folder / "ledger.sqlite", read_only=True) for peer in (first, second)]
    for ledger in ledgers:
        assert ledger.samples_total() == sum(peer["samples"] for peer in given)
        assert [step.step for step in ledger.steps()] == list(range(1, last + 1))
    assert ledgers[0].steps() == ledgers[1].steps()
    before, after = ([each for each in ledger.evaluations() if each.step < last] for ledger in ledgers)
    assert before == after, "only that of the last step may be measured anew"
    # Somebody who is still there was seen later than the last push.
    then, restored = ([replace(c, last_seen=0.0) for c in ledger.contributors()] for ledger in ledgers)
    assert then == restored
    for ledger in ledgers:
        ledger.close()
    checkpoints = Checkpoints(first.config.folder / "checkpoints")
    losses = {event.step: event.loss for event in first.events if isinstance(event, Evaluated) and event.step}
    assert checkpoints.best is not None
    assert checkpoints.best.loss == min(losses.values()) == losses[checkpoints.best.step]


@pytest.mark.soak
def test_on_a_full_disk_the_run_goes_on_and_the_ledger_catches_up_when_there_is_room(tmp_path: Path) -> None:
    full = tmp_path / "full"
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator(environment={"TINY_FAULT": f"full disk while {full}"})
        volunteer = swarm.volunteer("volunteer", {"TINY_PAUSE": "0.05"}, microbatch=8)
        coordinator.wait_for_step(2)
        full.touch()
        coordinator.wait_for(Warned, lambda event: "the ledger cannot be written" in event.text)
        recorded = coordinator.steps[-1].step.step
        volunteer.wait_for_step(recorded + 4)
        assert coordinator.steps[-1].step.step == recorded
        full.unlink()
        coordinator.wait_for_step(recorded + 6)
        assert coordinator.worker.stop() == 0
    last = coordinator.steps[-1].step.step
    ledger = Ledger(tmp_path / "coordinator" / "ledger.sqlite", read_only=True)
    assert [step.step for step in ledger.steps()] == list(range(1, last + 1)), "no gap"
    ledger.close()
    newest = Checkpoints(tmp_path / "coordinator" / "checkpoints").newest()
    assert newest is not None
    assert newest[1].step == last


@pytest.mark.soak
def test_a_record_that_is_lost_while_the_run_goes_on_is_written_anew_and_told(tmp_path: Path) -> None:
    folder = tmp_path / "coordinator"
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator(checkpoint_every=1)
        swarm.volunteer("volunteer", {"TINY_PAUSE": "0.05"}, microbatch=8)
        coordinator.wait_for_step(2)
        identity = (folder / "identity.key").read_bytes()
        shutil.rmtree(folder, ignore_errors=True)  # something may be written there meanwhile
        told = coordinator.wait_for(Warned, lambda event: event.alert)
        assert "the ledger" in told.text
        coordinator.wait_for_step(coordinator.steps[-1].step.step + 3)
        assert coordinator.worker.stop() == 0
    last = coordinator.steps[-1].step.step
    ledger, _ = opened(folder / "ledger.sqlite", folder / "checkpoints" / "ledger-copy.sqlite")  # as at the next start
    assert [step.step for step in ledger.steps()] == list(range(1, last + 1)), "no gap"
    ledger.close()
    assert (folder / "identity.key").read_bytes() == identity
    newest = Checkpoints(folder / "checkpoints").newest()
    assert newest is not None
    assert newest[1].step == last


@pytest.mark.soak
def test_a_coordinator_is_refused_with_another_key_than_its_volunteers_follow(tmp_path: Path) -> None:
    with Swarm(tiny_run(), tmp_path) as swarm:
        first = swarm.coordinator()
        assert first.worker.stop() == 0
        (first.config.folder / "identity.key").unlink()
        failed = swarm.start_coordinator().wait_for(Failed)
        assert "volunteers follow no other; put it back from a copy" in failed.text
        assert not (first.config.folder / "identity.key").exists(), "no other is made meanwhile"
