"""A ledger that anyone keeps of a run, from what its peers sign."""

from pathlib import Path

import pytest

from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.dashboard.run_dashboard import Dashboard
from dedloc_kit.events import Peers, StepDone
from dedloc_kit.ledger import Conviction, Ledger
from dedloc_kit.records.orders import Checks
from dedloc_kit.roles.collector import _Collector
from tests.invitations import NOBODY, invited
from tests.ledgers import a_step, given
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


def test_what_the_checks_have_found_a_collector_has_from_the_coordinator_s_page(tmp_path: Path) -> None:
    run = tiny_run(trust={"checks": "on"})
    theirs, mine = Ledger(tmp_path / "theirs.sqlite"), tmp_path / "mine"
    mine.mkdir()
    served = Dashboard(run, tmp_path / "theirs.sqlite")
    served.start()
    seen = Checks(passed=40, convicted=1, share=0.3, alarm=12)
    served.publish(Peers(peers=(), checks=seen))
    asha = Conviction("QmAsha", 1000.0, "Asha", "it lied (global step 2)", last_passed=1)
    found = _Collector(invited(run, (NOBODY,), served.url), PeerConfig(folder=mine), None, lambda event: None)
    try:
        for ledger in (theirs, found._ledger):
            for step in (1, 2):
                ledger.record_step(a_step(step), {"QmAsha": given(step, 64, 64 * step)})
        theirs.record_convictions([asha])
        found._ask_coordinator()
        assert found._as_seen((), None).checks == seen
        assert found._ledger.convictions() == (1, [asha])
        assert [person.samples for person in found._ledger.people()] == [64]
        theirs.record_convictions([])
        found._ask_coordinator()
        assert found._ledger.sent_away() == set()
        served.stop()
        found._ask_coordinator()
        assert found._as_seen((), None).checks == seen, "as it was when the coordinator was there last"
    finally:
        found.close()
        served.stop()
        theirs.close()


@pytest.mark.real
def test_a_collector_comes_to_the_same_ledger_as_the_coordinator_also_while_that_one_is_down(tmp_path: Path) -> None:
    with Swarm(tiny_run(global_batch=64), tmp_path) as swarm:
        first = swarm.coordinator()
        volunteers = [swarm.volunteer(name, {"TINY_PAUSE": "0.2"}, microbatch=4) for name in ("one", "two")]
        first.wait_for_step(2)
        collector = swarm.collector("collector")
        seen = collector.wait_for(Peers, lambda event: len(event.peers) == 3)
        assert {peer.name for peer in seen.peers} == {"coordinator", "one", "two"}
        collector.wait_for_step(3)
        first.worker.kill()
        alone = collector.wait_for(StepDone, lambda event: event.step.peers == 2 and event.step.step > 3)
        collector.wait_for_step(alone.step.step + 1)
        assert collector.worker.stop() == 0

        again = swarm.collector("collector")
        assert again.joined.step > alone.step.step, "it remembers what was, and whom to ask"
        second = swarm.coordinator()
        second.wait_for(StepDone, lambda event: event.step.peers == 3)
        for peer in volunteers:
            assert peer.worker.stop() == 0
        last = max(peer.steps[-1].step.step for peer in volunteers)
        second.wait_for_step(last)
        again.wait_for_step(last)
        everyone = {peer.peer for event in second.events if isinstance(event, Peers) for peer in event.peers}
        assert everyone == {peer.joined.peer for peer in volunteers}, "the others do not notice a collector"
        for peer in (again, second):
            assert peer.worker.stop() == 0
    mine, theirs = ledger_of(again), ledger_of(second)
    assert_same(mine, theirs)
    assert [step.step for step in mine.steps()] == list(range(1, mine.last_step() + 1)), (
        "what was before it came is in receipts"
    )
    mine.close()
    theirs.close()
