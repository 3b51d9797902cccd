"""How much a server remembers."""

import pytest

from dedloc_kit.swarm.serving.protocol import Refusal
from dedloc_kit.swarm.serving.server.sessions import Budget


def test_a_thousand_sessions_that_are_over_leave_nothing_behind() -> None:
    budget = Budget(100, sessions_of_a_peer=2)
    for number in range(1000):
        reservation = budget.reserve(f"peer{number}", 40)
        reservation.grow(70)
        assert budget.free == 30
        reservation.close()
    assert budget.free == 100
    assert not budget._sessions
    assert not budget._held


def test_more_than_there_is_room_for_is_refused_and_takes_nothing() -> None:
    budget = Budget(100)
    reservation = budget.reserve("one", 60)
    with pytest.raises(Refusal, match="40 cache tokens are free, not 41"):
        budget.reserve("other", 41)
    with pytest.raises(Refusal, match="15 cache tokens are free, not 41"):  # the rest is left to others
        reservation.grow(101)
    assert budget.free == 40
    budget.reserve("other", 40).close()
    reservation.close()
    assert budget.free == 100


def test_one_peer_has_its_part_of_the_sessions() -> None:
    budget = Budget(100, sessions_of_a_peer=2)
    first = [budget.reserve("one", 1) for _ in range(2)]
    with pytest.raises(Refusal, match="2 sessions of one peer are enough"):
        budget.reserve("one", 1)
    budget.reserve("other", 1)
    first[0].close()
    budget.reserve("one", 1)


def test_no_peer_takes_all_the_room_with_many_sessions() -> None:
    budget = Budget(100)
    first = [budget.reserve("one", 25) for _ in range(3)]
    with pytest.raises(Refusal, match="0 cache tokens are free, not 25"):
        budget.reserve("one", 25)
    budget.reserve("other", 25).close()
    for reservation in first:
        reservation.close()
    budget.reserve("one", 100).close()  # a long text alone may
    assert budget.free == 100
