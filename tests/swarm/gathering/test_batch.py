"""When the batch is full, and when this peer's part of it is fixed."""

from math import inf
from typing import Any

import pytest

from dedloc_kit.records.position import Position
from dedloc_kit.swarm.gathering.batch import (
    DISTRUSTED_STEPS,
    HELD,
    MAX_PERIOD,
    MIN_PERIOD,
    QUIET,
    BatchFilling,
    Fix,
    Open,
)
from dedloc_kit.swarm.gathering.peers import PeerTable
from tests.swarm.consensus.table import decided, entry
from tests.swarm.gathering.positions import chain, position


class Filling:
    """One peer's batch of ten samples, and what it hears."""

    def __init__(self, **more: Any) -> None:
        self.chain, self.table = chain("me", "a", "b"), PeerTable("me")
        self.batch = BatchFilling("me", position(0), self.chain, self.table, 10, **more)

    def hear(self, at: float, **told: Position | None) -> None:
        self.table.look(told, at)

    def update(self, at: float, samples: int, rate: float = 1.0, **more: Any) -> list[Fix | Open]:
        return self.batch.update(position(at, samples=samples, samples_per_second=rate), at, **more)


def test_a_part_is_fixed_once_the_batch_is_full_and_open_again_if_it_is_not() -> None:
    me = Filling()
    me.hear(0, a=position(0, samples=4))
    assert me.update(0, 5) == []
    assert me.update(1, 6) == [Fix()]
    assert me.update(2, 6) == []
    me.hear(3, a=None)
    assert me.update(3, 6) == [Open()]


def test_a_part_that_no_round_takes_grows_now_and_then() -> None:
    me = Filling()
    me.hear(0, mute=position(0, samples=9))
    assert me.update(0, 1) == [Fix()]
    assert me.update(HELD, 1) == []
    assert me.update(HELD + 1, 1) == [Open(), Fix()]
    assert me.update(HELD + 2, 12) == []


def test_what_another_has_surely_computed_since_counts_for_the_part_but_begins_no_round() -> None:
    me = Filling()
    me.hear(0, a=position(0, samples=4, samples_per_second=2.0, boundary_seconds=1.0))
    assert me.update(0.9, 4) == []
    assert me.update(1.1, 4) == [], "its microbatch may be a bit late"
    assert me.update(1.3, 4) == [Fix()]
    assert not me.batch.may_begin({"me", "a"}, False, 1.3)
    me.hear(2, a=position(2, samples=6))
    assert me.batch.may_begin({"me", "a"}, False, 2)
    assert not me.batch.may_begin({"me"}, False, 2), "it is not in the group"
    assert me.batch.may_begin({"me"}, True, 2), "another member has begun"


def test_where_a_peer_is_in_its_microbatch_matters() -> None:
    me = Filling()
    told = position(0, samples=4, samples_per_second=1.0, boundary_seconds=4.0)
    me.hear(0, a=told.model_copy(update={"computed": told.time - 3.0}))
    assert me.update(1.0, 2) == []
    assert me.update(2.0, 2) == [Fix()], "four more, five seconds after its last ones"


@pytest.mark.parametrize("more", [{"fixed": True}, {"samples_per_second": 0.0}])
def test_a_peer_whose_part_is_fixed_adds_nothing(more: dict[str, Any]) -> None:
    me = Filling()
    me.hear(0, a=position(0, **{"samples": 4, "samples_per_second": 2.0, "boundary_seconds": 1.0, **more}))
    assert me.update(5, 5) == []


def test_guesses_are_not_trusted_any_more_after_one_that_came_to_nothing() -> None:
    me = Filling()
    me.hear(0, liar=position(0, samples_per_second=1e9))
    assert me.update(0.1, 1) == [Fix()]
    for at in range(1, int(QUIET) + 2):
        me.hear(at, liar=position(at, samples_per_second=1e9))
        assert me.update(at + 0.1, 1) == []
    assert me.update(QUIET + 1.3, 1) == [Open()]
    assert me.update(QUIET + 60, 1) == []
    assert DISTRUSTED_STEPS > 1


def test_a_peer_that_fell_silent_is_not_believed_to_go_on() -> None:
    me = Filling()
    me.hear(0, a=position(0, samples=4, samples_per_second=1.0, boundary_seconds=1.0))
    me.hear(QUIET + 1, a=position(0, samples=4, samples_per_second=1.0, boundary_seconds=1.0))
    assert me.update(QUIET + 1, 4) == []


def test_peers_of_a_step_that_have_not_told_that_they_took_it_have_computed_as_long_as_this_one() -> None:
    me = Filling()
    head = me.chain.head
    commit = decided(head, (entry(head, "me"), entry(head, "a")), "me a")
    me.chain.adopt([commit])
    me.hear(0, a=position(0, head=commit.previous, samples=4, samples_per_second=1.0))
    assert me.batch.peers(0)[0] == {}
    assert list(me.batch.peers(0)[1]) == ["a"]
    assert me.update(0, 4) == []
    assert me.update(0, 5) == [Fix()]


def test_what_claims_count_for_is_for_the_run_to_say() -> None:
    me = Filling(count=lambda told: sum(min(3, at.samples) for at in told.values()))
    me.hear(0, a=position(0, samples=600), b=position(0, samples=3))
    assert me.update(0, 600) == []
    assert not me.batch.full({"a", "b"}, 0)


def test_the_group_that_stands_fills_the_batch_alone() -> None:
    me = Filling()
    me.hear(0, a=position(0, samples=4), b=position(0, samples=4))
    assert me.update(0, 4) == [Fix()]
    assert me.update(0, 4, members={"me", "a"}) == [Open()]
    assert me.update(0, 6, members={"me", "a"}) == [Fix()]


def test_peers_at_another_head_or_under_suspicion_fill_no_batch() -> None:
    me = Filling()
    me.hear(0, a=position(0, head="ab" * 32, samples=10), b=position(0, samples=9))
    assert me.update(0, 0) == []
    assert me.update(0, 1) == [Fix()]
    me.table.doubt({"b"}, 1)
    assert me.update(1, 1) == [Open()]


def test_the_time_until_the_batch_is_full_is_a_guess() -> None:
    me = Filling()
    assert me.batch.seconds_left(0) == inf
    me.hear(0, a=position(0, samples_per_second=1.0))
    me.update(0, 0)
    assert me.batch.seconds_left(0) == 5.0
    assert me.batch.seconds_left(2) == 4.0, "it goes on computing"
    assert me.batch.seconds_left(60) == 3.0, "not for ever"
    me.update(0, 10)
    assert me.batch.seconds_left(0) == 0.0


def test_looks_are_often_near_the_end_of_the_batch_and_seldom_before() -> None:
    me = Filling()
    me.hear(0, a=position(0))
    assert 0.5 < me.batch.look_period(0) < 2.0, "nobody computes"
    me.update(0, 0, rate=0.1)
    assert me.batch.look_period(0) == MAX_PERIOD
    me.update(0, 10, rate=0.1)
    assert me.batch.look_period(0) == 1.0
    me.update(0, 10, rate=100.0)
    assert me.batch.look_period(0) == MIN_PERIOD
    assert 0 < me.batch.deadline(0) < 1


def test_with_overflow_a_part_takes_in_all_until_its_round_begins() -> None:
    me = Filling(overflow=True)
    me.hear(0, a=position(0, samples=8))
    assert me.update(0, 7) == []
    assert me.batch.may_begin({"a"}, False, 0)
    assert not me.batch.fixed


# Where others say how many samples the batch has


def test_nobody_guesses_where_it_is_said_what_the_batch_holds() -> None:
    me = Filling()
    me.batch.said = 10
    me.hear(0, a=position(0, samples=4, samples_per_second=2.0, boundary_seconds=1.0))
    assert me.update(5, 4) == []
    assert me.update(5, 6) == [Fix()]


@pytest.mark.parametrize(("said", "begins"), [(12, False), (10, True), (0, True), (inf, False)])
def test_a_batch_holds_what_is_said(said: float, begins: bool) -> None:
    me = Filling()
    me.batch.said = said
    me.hear(0, a=position(0, samples=5))
    me.update(0, 5)
    assert me.batch.fixed == me.batch.may_begin({"a"}, False, 0) == begins
    assert me.batch.may_begin({"a"}, True, 0) == begins, "a peer that computes is told soon what the batch holds"


def test_while_it_is_not_known_what_the_batch_holds_a_group_gathers_for_a_global_batch() -> None:
    me = Filling()
    me.batch.said = inf
    me.hear(0, a=position(0, samples=5))
    me.update(0, 2)
    assert me.batch.seconds_left(0) == 3.0


def test_a_follower_that_is_not_told_what_the_batch_holds_begins_once_it_is_called_or_all_say_that_they_have_it() -> (
    None
):
    me = Filling()
    me.batch.mine = position(0, follower=True)
    me.batch.said = inf
    me.hear(0, a=position(0, samples=8, fixed=True), b=position(0, samples=8), c=position(0, follower=True))
    group = {"a", "b", "c"}
    assert not me.batch.may_begin(group, False, 0)
    assert me.batch.may_begin(group, True, 0)
    me.hear(1, b=position(1, samples=8, fixed=True))
    assert me.batch.may_begin(group, False, 1)
    assert not me.batch.may_begin({"b"}, False, 1), "too few samples for a batch"


@pytest.mark.parametrize(
    ("said", "mine", "lacks"),
    [(None, 3, False), (5, 3, True), (5, 8, False), (8, 3, True), (9, 3, False)],
    ids=["not said", "short", "whole", "short, but the others have it", "nobody has it"],
)
def test_a_short_batch_is_not_taken_without_samples_that_others_have(said: int | None, mine: int, lacks: bool) -> None:
    me = Filling()
    me.batch.said = said
    me.hear(0, a=position(0, samples=2), b=position(0, samples=3))
    me.update(0, mine)
    assert me.batch.lacks({"a"}, 0) == lacks
    assert not me.batch.lacks({"a", "b"}, 0)


def test_a_device_is_ahead_by_its_share_of_what_all_compute() -> None:
    me = Filling()
    me.hear(0, a=position(0, samples=6, samples_per_second=3.0))
    me.update(0, 3, rate=2.0)
    assert not me.batch.is_ahead(4, 0)
    me.update(0, 4, rate=2.0)
    assert not me.batch.is_ahead(3, 0)
    assert me.batch.is_ahead(4, 0), "two fifths of the batch after this one"
