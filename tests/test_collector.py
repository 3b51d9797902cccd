"""A ledger that anyone keeps of a run, from what its peers sign."""

from pathlib import Path

import pytest

from dedloc_kit.events import Failed, Joined, Peers, StepDone, Warned
from dedloc_kit.ledger import Ledger
from dedloc_kit.records import Invitation
from tests.swarm.harness import Peer, Swarm
from tests.tiny import tiny_run


def ledger_of(peer: Peer) -> Ledger:
    return Ledger(peer.config.folder / "ledger.sqlite", read_only=True)


def assert_same(mine: Ledger, theirs: Ledger) -> None:
    """All but the times, which everyone has from a clock of their own."""
    steps = [[(s.step, s.round, s.samples, s.loss, s.peers) for s in ledger.steps()] for ledger in (mine, theirs)]
    assert steps[0] == steps[1]
    people = [{c.peer: (c.name, c.samples, c.steps) for c in ledger.contributors()} for ledger in (mine, theirs)]
    assert people[0] == people[1]
    for step in steps[0]:
        assert mine.contributions_of(step[0]) == theirs.contributions_of(step[0])


def test_a_collector_comes_to_the_same_ledger_as_the_coordinator_and_nobody_trains_with_it(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=32), tmp_path) as swarm:
        coordinator = swarm.coordinator(until_step=8)
        volunteers = [swarm.volunteer(name, {"TINY_PAUSE": "0.1"}, microbatch=4) for name in ("one", "two")]
        coordinator.wait_for_step(3)
        collector = swarm.collector("collector")
        seen = collector.wait_for(Peers, lambda event: len(event.peers) == 3)
        assert {peer.name for peer in seen.peers} == {"coordinator", "one", "two"}
        coordinator.wait_for_step(8)
        collector.wait_for_step(8)
        assert collector.joined.peer not in {
            peer.peer for event in coordinator.events if isinstance(event, Peers) for peer in event.peers
        }
        for peer in (*volunteers, collector, coordinator):
            assert peer.worker.stop() == 0
    assert max(event.step.peers for event in coordinator.steps) == 3
    mine, theirs = ledger_of(collector), ledger_of(coordinator)
    assert_same(mine, theirs)
    assert mine.steps()[0].step == 1, "what was before it came is in the peers' receipts"
    mine.close()
    theirs.close()


@pytest.mark.slow
def test_while_the_coordinator_is_down_a_collector_goes_on_with_the_volunteers(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=64), tmp_path) as swarm:
        first = swarm.coordinator()
        for name in ("one", "two"):
            swarm.volunteer(name, {"TINY_PAUSE": "0.2"}, microbatch=4)
        collector = swarm.collector("collector")
        collector.wait_for_step(2)
        first.worker.kill()
        alone = collector.wait_for(StepDone, lambda event: event.step.peers == 2 and event.step.step > 2)
        collector.wait_for_step(alone.step.step + 2)
        assert collector.worker.stop() == 0

        again = swarm.collector("collector")
        assert again.joined.step >= alone.step.step + 2, "it remembers, and whom to ask"
        second = swarm.coordinator()
        together = second.wait_for(StepDone, lambda event: event.step.peers == 3)
        again.wait_for_step(together.step.step + 1)
        for peer in reversed(swarm.peers):
            peer.worker.stop()
    mine, theirs = ledger_of(again), ledger_of(second)
    assert [step.step for step in mine.steps()] == list(range(1, mine.last_step() + 1))
    common = min(mine.last_step(), theirs.last_step())
    rounds = [[(step.step, step.round) for step in ledger.steps(limit=common)] for ledger in (mine, theirs)]
    assert rounds[0] == rounds[1]
    mine.close()
    theirs.close()


def test_where_nobody_answers_a_collector_says_so(tmp_path: Path) -> None:
    swarm = Swarm(tiny_run(), tmp_path)
    swarm.invitation = Invitation.of(
        swarm.run, ("/ip4/127.0.0.1/tcp/9/p2p/QmcFKvU2EFGisLXRffTz31yXF3vWgZjKM4d1myqspfDYFi",)
    )
    with swarm:
        collector = swarm.collector("collector")
        assert "nobody answers" in collector.wait_for(Failed).text
        assert not [event for event in collector.events if isinstance(event, Joined | Warned)]
