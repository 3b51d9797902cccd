"""Who has passed enough checks, and when it counts."""

from dedloc_kit.swarm.audits.probation import Probation
from dedloc_kit.swarm.trust import weight
from dedloc_kit.swarm.trust.pledge import Pledged
from dedloc_kit.swarm.trust.weight import Earned, claimed
from tests.swarm.audits.audited import pledged


def step(*peers: str, **confirmed: int) -> dict[str, Pledged]:
    return {peer: pledged(peer, 1, confirmed=confirmed.get(peer, 0)) for peer in peers}


def test_nobody_has_standing_before_more_than_half_of_a_step_would_have_it() -> None:
    probation = Probation(2, Earned(claimed))
    for peer in ("alice", "alice", "bob", "bob", "carol"):
        probation.passed(peer, pledged(peer, 1))
    assert probation.due(step("alice", "bob", "carol", "dave")) == {}, "half is not more than half"
    assert probation.due(step("alice", "carol", "bob")) == {"alice": 40, "bob": 40}
    assert probation.due(step("alice", "dave", "erin")) == {"alice": 40}, "it has begun"


def test_after_a_new_start_of_the_organizer_those_with_standing_keep_it_and_the_others_go_on_from_nothing() -> None:
    probation = Probation(3, Earned(claimed))
    shown = step("alice", "bob", "carol", "dave", alice=40)
    assert probation.due(shown) == {}
    assert probation.untried(shown["bob"])
    assert not probation.untried(shown["alice"])
    probation.passed("alice", pledged("alice", 2, samples=60))
    for _ in range(3):
        probation.passed("bob", pledged("bob", 2))
    assert probation.due(shown) == {"alice": 60, "bob": 40}


def test_whoever_was_convicted_begins_anew() -> None:
    probation = Probation(1, Earned(claimed))
    probation.passed("alice", pledged("alice", 5))
    assert probation.due(step("alice")) == {"alice": 40}
    assert probation.convicted("alice") == 5
    assert probation.convicted("alice") == 0
    assert probation.due(step("alice")) == {}


def test_a_run_without_newcomers_tells_nobody() -> None:
    probation = Probation(0, claimed)
    probation.passed("alice", pledged("alice", 5))
    assert probation.due(step("alice")) == {}
    assert not probation.untried(step("bob")["bob"])


def test_only_so_many_peers_are_remembered() -> None:
    probation = Probation(1, Earned(claimed))
    for number in range(weight.MAX_KNOWN + 10):
        probation.passed(str(number), pledged(str(number), 1))
    assert len(probation._passed) == weight.MAX_KNOWN
