"""Whole runs that are not open to all, and the sending away of a peer, with real processes."""

import time
from pathlib import Path

import pytest

from dedloc_kit.access.admission import invite, revoke
from dedloc_kit.config.run import RunConfig
from dedloc_kit.events import Failed, Joined
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.steering.orders import OrderBook
from dedloc_kit.worker import NOT_WELCOME
from tests.swarm.harness import Peer, Swarm
from tests.tiny import tiny_run

pytestmark = pytest.mark.soak
SLOWLY = {"TINY_PAUSE": "0.05"}
MINUTE = 60.0


def begun(run: RunConfig, folder: Path) -> tuple[Swarm, Path]:
    """A swarm with a coordinator; its folder is as a launcher leaves it."""
    swarm = Swarm(run, folder)
    coordinator = swarm.coordinator()
    (coordinator.config.folder / INVITATION_FILE).write_text(swarm.invitation.model_dump_json())
    return swarm, coordinator.config.folder


def goes_on(peer: Peer, steps: int = 2) -> None:
    peer.wait_for_step(peer.steps[-1].step.step + steps)


def test_with_a_code_one_trains_without_one_is_refused_and_revoked_one_is_out_within_a_minute(tmp_path: Path) -> None:
    swarm, folder = begun(tiny_run(access="invite"), tmp_path)
    with swarm:
        alice = swarm.volunteer("alice", {**SLOWLY, "DEDLOC_CODE": invite(folder, "alice", days=1)})
        bob = swarm.volunteer(
            "bob", {**SLOWLY, "DEDLOC_CODE": (code := invite(folder, "bob", days=1))}, client_mode=True
        )
        mallory = swarm.volunteer("mallory", client_mode=True)
        assert "ask the organizer for your personal code" in mallory.wait_for(Failed).text
        assert mallory.worker.wait(MINUTE) == NOT_WELCOME
        stranger, watcher = swarm.collector("stranger"), swarm.collector("watcher", code)
        assert "ask the organizer for your personal code" in stranger.wait_for(Failed).text
        for peer in (alice, bob, watcher):
            peer.wait_for_step(3)
        revoke(folder, "alice")
        revoked = time.monotonic()
        assert "the organizer has withdrawn your invitation" in alice.wait_for(Failed, deadline=MINUTE).text
        assert time.monotonic() < revoked + MINUTE
        assert alice.worker.wait(MINUTE) == NOT_WELCOME
        for peer in (bob, watcher):
            goes_on(peer)
        bob.worker.stop()
        again = swarm.volunteer("bob", SLOWLY, client_mode=True)  # the coordinator knows this machine
        goes_on_from = again.wait_for(Joined).step
        again.wait_for_step(goes_on_from + 2)
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or code.encode() not in file.read_bytes(), f"the code is in {file}"


def test_without_the_coordinator_those_who_are_in_go_on_and_come_back_and_nobody_new_comes_in(tmp_path: Path) -> None:
    swarm, folder = begun(tiny_run(access="invite"), tmp_path)
    with swarm:
        codes = {name: {**SLOWLY, "DEDLOC_CODE": invite(folder, name, days=1)} for name in ("alice", "bob", "carol")}
        alice = swarm.volunteer("alice", codes["alice"], client_mode=False)
        bob = swarm.volunteer("bob", codes["bob"], client_mode=True)
        for peer in (alice, bob):
            peer.wait_for_step(3)
        swarm.peers[0].worker.kill()
        goes_on(alice, 3)
        bob.worker.stop()
        swarm.invitation = swarm.invitation.model_copy(
            update={"peers": (*swarm.invitation.peers, *alice.joined.addresses)}
        )
        bob = swarm.volunteer("bob", SLOWLY, client_mode=True)
        goes_on_from = bob.wait_for(Joined).step
        bob.wait_for_step(goes_on_from + 2)
        carol = swarm.volunteer("carol", codes["carol"], client_mode=True)
        assert "only it can let this machine in" in carol.wait_for(Failed).text


def test_a_kicked_peer_is_out_of_an_open_run_within_a_minute_is_told_why_and_stays_out(tmp_path: Path) -> None:
    swarm, folder = begun(tiny_run(), tmp_path)
    with swarm:
        mallory = swarm.volunteer("mallory", SLOWLY, client_mode=False)
        bob = swarm.volunteer("bob", SLOWLY, client_mode=True)
        for peer in (mallory, bob):
            peer.wait_for_step(3)
        OrderBook(folder).kick(mallory.joined.peer, "mallory", "it lied (global step 3)")
        kicked = time.monotonic()
        why = "the organizer has sent this machine away after its work was checked: it lied (global step 3)"
        assert why in mallory.wait_for(Failed, deadline=MINUTE).text
        assert time.monotonic() < kicked + MINUTE
        assert mallory.worker.wait(MINUTE) == NOT_WELCOME
        goes_on(bob)
        again = swarm.volunteer("mallory", SLOWLY, client_mode=True)
        assert why in again.wait_for(Failed).text
