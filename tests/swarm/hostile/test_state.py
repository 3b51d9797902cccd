"""Somebody says that it holds a newer state, or another one than the rest, and serves it: nobody takes it."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hivemind.p2p import P2P, PeerID

from dedloc_kit.events import Left, LocalProgress, Peers, Warned
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.service import decode, encode
from dedloc_kit.swarm.transfer.donor import MAX_UPLOADS
from dedloc_kit.swarm.transfer.protocol import Header, Request
from dedloc_kit.swarm.transfer.service import TransferService
from tests.hang import HANG
from tests.swarm.harness import (
    Peer,
    Puppet,
    Swarm,
    assert_ledger_sums,
    difference,
    ledger_of,
    outside,
)
from tests.swarm.hostile.follower import FORGED
from tests.tiny import tiny_run

PAUSE = {"TINY_PAUSE": "0.05"}


class Liar(Puppet):
    """The hostile process of `follower.py`."""

    def __init__(self, swarm: Swarm, folder: Path) -> None:
        super().__init__("tests.swarm.hostile.follower", folder)
        invitation = swarm.invitation
        who = {"run": invitation.run, "folder": str(folder), "peers": invitation.peers}
        self.peer: str = self._do({**who, "organizer": invitation.organizer})["peer"]

    def claims(self, step: int, round: str, sketch: tuple[float, ...] = ()) -> None:
        self._do({"step": step, "round": round, "sketch": sketch})

    def rewinds(self, donor: str, rate: float, ahead: int) -> None:
        self._do({"donor": donor, "rate": rate, "ahead": ahead})

    def gives(self, step: int, samples: int) -> None:
        self._do({"step": step, "samples": samples})

    def _do(self, job: dict[str, Any]) -> dict[str, Any]:
        self.say(job)
        return self.hear()


@contextmanager
def a_liar(swarm: Swarm, folder: Path) -> Iterator[Liar]:
    liar = Liar(swarm, folder)
    try:
        yield liar
    finally:
        liar.end()


def assert_nobody_followed(*peers: Peer) -> None:
    for peer in peers:
        steps = [event.step.step for event in peer.steps]
        assert steps == list(range(steps[0], steps[0] + len(steps))), f"{peer.name} has left the way"
        assert max(steps) < 500


@pytest.mark.soak
def test_a_lone_follower_that_claims_the_newest_step_is_followed_by_nobody(tmp_path: Path) -> None:
    run = tiny_run("claimed", global_batch=32)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        volunteer = swarm.volunteer("volunteer", PAUSE, microbatch=4)
        coordinator.wait_for_step(2)
        with a_liar(swarm, tmp_path / "liar") as liar:
            liar.claims(900, "f" * 64, (1.0, 2.0, 3.0, 4.0))
            coordinator.wait_for(Warned, lambda event: "900" in event.text)
            told = coordinator.steps[-1].step.step
            seen = coordinator.wait_for(Peers, lambda event: liar.peer in {peer.peer for peer in event.peers})
            assert max(peer.step for peer in seen.peers) < 900
            coordinator.wait_for_step(told + 5)
            volunteer.wait_for_step(told + 5)
            # The same at the step that they are at: they are not many enough to have drifted, or gone another way.
            newest = coordinator.steps[-1].step
            liar.claims(newest.step, newest.round, (1.0, 2.0, 3.0, 4.0))
            coordinator.wait_for_step(newest.step + 3)
        volunteer.worker.stop()
        coordinator.worker.stop()
    assert_nobody_followed(coordinator, volunteer)
    assert_ledger_sums(coordinator, run.global_batch)


@pytest.mark.soak  # `contributions.possible` and the ledger are tested by themselves
def test_a_stranger_who_says_it_has_given_to_step_0_is_not_in_the_ledger(tmp_path: Path) -> None:
    run = tiny_run("given", global_batch=32)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        volunteer = swarm.volunteer("volunteer", PAUSE, microbatch=4)
        coordinator.wait_for_step(2)
        with a_liar(swarm, tmp_path / "liar") as liar:
            liar.gives(0, 2**53)
            coordinator.wait_for(Warned, lambda event: "there is no step 0 to give to" in event.text)
        volunteer.worker.stop()
        coordinator.worker.stop()
    ledger = ledger_of(coordinator)
    assert [contributor.peer for contributor in ledger.contributors()] == [volunteer.joined.peer]
    ledger.close()
    assert_ledger_sums(coordinator, run.global_batch)


@contextmanager
def places_taken(swarm: Swarm, count: int) -> Iterator[None]:
    """So many strangers download the coordinator's state again and again, so that it has no place for others."""
    held, over = threading.Semaphore(0), threading.Event()

    async def hold(p2p: P2P) -> None:
        organizer = PeerID.from_base58(swarm.invitation.organizer)
        service = Names(swarm.run.run_id).service(TransferService.name)
        _, reader, writer = await p2p.call_binary_stream_handler(organizer, service)
        asked = encode(Request(what="state", end=1))
        while not over.is_set():
            writer.write(len(asked).to_bytes(4, "big") + asked)
            header = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            assert Header.parse(decode(header)).answer == "here"
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            held.release()
            await asyncio.sleep(0.5)
        writer.close()

    with ThreadPoolExecutor(count) as strangers:
        holding = [strangers.submit(outside, swarm, hold) for _ in range(count)]
        try:
            for _ in range(count):
                assert held.acquire(timeout=HANG)
            yield
        finally:
            over.set()
        for each in holding:
            each.result(HANG)


@pytest.mark.soak  # as are the witnesses
def test_a_newcomer_is_given_a_forged_state_by_the_only_donor_and_refuses_it(tmp_path: Path) -> None:
    run = tiny_run("forged", global_batch=32)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        first = swarm.volunteer("first", PAUSE, microbatch=4)
        coordinator.wait_for_step(2)
        first.worker.stop()
        newest = coordinator.steps[-1].step
        with a_liar(swarm, tmp_path / "liar") as liar:
            with places_taken(swarm, MAX_UPLOADS):
                liar.claims(newest.step, newest.round, (1.0, 2.0, 3.0, 4.0))
                newcomer = swarm.volunteer("newcomer", PAUSE, microbatch=4, until_step=newest.step + 2)
                newcomer.wait_for(Warned, lambda event: "a downloaded state was refused" in event.text)
                assert not [event for event in newcomer.events if isinstance(event, LocalProgress)]
            newcomer.wait_for(Left)
        coordinator.wait_for_step(newest.step + 2)
        coordinator.worker.stop()
    assert difference(newcomer.parameters(), coordinator.parameters()) == 0.0
    assert all(float((values - FORGED).abs().max()) > 0.01 for values in newcomer.parameters().values())


@pytest.mark.soak  # receipts and witnesses are tested by themselves, see test_rewind.py
@pytest.mark.timeout(600)
def test_a_newcomer_takes_no_rewind_from_the_only_donor_that_is_not_the_organizers(tmp_path: Path) -> None:
    refused = "the receipt of a step"
    with Swarm(tiny_run("rewound", global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator()
        first = swarm.volunteer("first", PAUSE, microbatch=4)
        coordinator.wait_for_step(2)
        first.worker.stop()
        newest = coordinator.steps[-1].step
        with a_liar(swarm, tmp_path / "liar") as liar:
            liar.rewinds(coordinator.joined.peer, 1.0, ahead=0)
            with places_taken(swarm, MAX_UPLOADS):
                newcomer = swarm.volunteer("newcomer", PAUSE, microbatch=4, until_step=newest.step + 2)
                newcomer.wait_for(Warned, lambda event: refused in event.text)
            newcomer.wait_for(Left)
        coordinator.wait_for_step(newest.step + 2)
        coordinator.worker.stop()
    assert difference(newcomer.parameters(), coordinator.parameters()) == 0.0
    assert_nobody_went_back(newcomer, coordinator)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_rewind_that_somebody_else_orders_and_has_done_is_followed_by_nobody(tmp_path: Path) -> None:
    run = tiny_run("ordered", global_batch=32)
    with Swarm(run, tmp_path) as swarm:
        coordinator = swarm.coordinator()
        volunteer = swarm.volunteer("volunteer", PAUSE, microbatch=4)
        coordinator.wait_for_step(2)
        with a_liar(swarm, tmp_path / "liar") as liar:
            for ahead in (1, 3):
                liar.rewinds(coordinator.joined.peer, 0.5, ahead)
                coordinator.wait_for(Peers, lambda event: liar.peer in {peer.peer for peer in event.peers})
                told = max(peer.steps[-1].step.step for peer in (coordinator, volunteer))
                for peer in (coordinator, volunteer):
                    peer.wait_for_step(told + 5)
        volunteer.worker.stop()
        coordinator.worker.stop()
    assert_nobody_followed(coordinator, volunteer)
    assert_nobody_went_back(coordinator, volunteer)
    assert_ledger_sums(coordinator, run.global_batch)


def assert_nobody_went_back(*peers: Peer) -> None:
    for peer in peers:
        assert all(event.step.peers for event in peer.steps), "a step without members took over a state"
        assert not any(isinstance(e, Warned) and "the organizer lets global step" in e.text for e in peer.events)
