"""The coordinator may die: newcomers join through others, and everyone finds it again; real processes on loopback."""

from contextlib import closing
from pathlib import Path

import pytest

from dedloc_kit.events import Peers, State, StepDone, Warned
from dedloc_kit.known_peers import recall
from dedloc_kit.ledger import Ledger
from dedloc_kit.records.invitation import Invitation
from tests.swarm.harness import Peer, Swarm, processes_of, wait_until
from tests.tiny import tiny_run

SLOWLY = {"TINY_PAUSE": "0.2"}


def kill(peer: Peer) -> None:
    peer.worker.kill()
    wait_until(lambda: not processes_of(peer.worker.pid), f"a process of {peer.name} is left")


def wait_for_contributors(peer: Peer, others: set[str]) -> StepDone:
    return peer.wait_for(StepDone, lambda event: others <= set(event.contributions))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_newcomers_join_through_volunteers_while_the_coordinator_is_down(tmp_path: Path) -> None:
    # Steps of some seconds: who comes asks several about one state, which all of them must still hold.
    with Swarm(tiny_run(global_batch=256), tmp_path) as swarm:
        first = swarm.coordinator(list_volunteers=True)
        stays = swarm.volunteer("stays", SLOWLY, microbatch=4, listed=True)
        # Without the coordinator a newcomer, who knows nobody yet, takes the word of three.
        others = [swarm.volunteer(name, SLOWLY, microbatch=4) for name in ("one", "another")]
        returns = swarm.volunteer("returns", SLOWLY, microbatch=4)
        assert stays.joined.addresses, "it was found to be reachable"
        wait_for_contributors(first, {stays.joined.peer, returns.joined.peer})

        told = first.wait_for(Peers, lambda event: len(event.listed) > 0)
        assert set(told.listed) == set(stays.joined.addresses), "the other one did not agree to that"

        def remembered() -> bool:
            known = recall(returns.config.folder, swarm.run.run_id).peers
            return set(stays.joined.addresses) <= set(known)

        wait_until(remembered, "a volunteer does not remember whom it met")
        returns.worker.stop()
        kill(first)
        alone = stays.wait_for_step(first.steps[-1].step.step + 2)

        back = swarm.volunteer("returns", SLOWLY, microbatch=4)
        assert back.joined.peer == returns.joined.peer
        assert back.joined.addresses == returns.joined.addresses, "others know where it is"
        assert back.joined.step >= alone.step.step - 1
        swarm.invitation = Invitation.of(swarm.run, (*first.joined.addresses, *told.listed))
        newcomer = swarm.volunteer("newcomer", SLOWLY, microbatch=4)
        all_five = {peer.joined.peer for peer in (stays, *others, back, newcomer)}
        assert wait_for_contributors(stays, all_five).step.step > alone.step.step

        second = swarm.coordinator()
        assert second.joined.addresses == first.joined.addresses
        together = second.wait_for(
            StepDone, lambda event: event.step.peers == 6 and all_five <= set(event.contributions)
        )
        assert together.step.step > alone.step.step, "it takes the newest state, not its own"
    with closing(Ledger(second.config.folder / "ledger.sqlite", read_only=True)) as ledger:
        steps = [step.step for step in ledger.steps()]
    assert steps == list(range(1, len(steps) + 1)), "what it missed is in the receipts"


@pytest.mark.soak
def test_volunteers_behind_firewalls_find_their_coordinator_again(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        first = swarm.coordinator()
        # Who listens there cannot be reached at 127.0.0.1, from where the coordinator sees it.
        clients = [swarm.volunteer(name, SLOWLY, microbatch=4, swarm_host="127.0.0.2") for name in ("one", "two")]
        for client in clients:
            client.wait_for(State, lambda event: "others cannot reach this machine" in event.text)
            assert client.joined.addresses == ()
            assert not any(isinstance(event, Warned) for event in client.events)
        for client in clients:
            wait_for_contributors(first, {client.joined.peer})
        before = first.steps[-1].step.step
        kill(first)
        second = swarm.coordinator()
        assert second.joined.addresses == first.joined.addresses
        for client in clients:
            after = wait_for_contributors(second, {client.joined.peer})
            assert after.step.step > before
            client.wait_for_step(after.step.step)
