"""Newcomers take the slowest stage; peers move one at a time, seldom, and never away from a stage of their own."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.lib.stage_balance import balance, settle
from benchmarks.lib.stage_swarm import DELAY, EXPIRY, LOOK, StageSwarm
from dedloc_kit.blocks.plans.stages import (
    BARE_LOOK,
    CANDIDATES,
    GAIN,
    HORIZON,
    LOADING,
    MAX_SPEED,
    REST,
    SECOND_LOOK,
    TURN,
    WINDOW,
    Move,
    Stage,
    StagePeer,
    bare,
    bottleneck,
    intend,
    may_begin,
    place,
    rates,
    useful_moves,
)

THREE = [Stage(share=1 / 3, state=12.5e6)] * 3
LINE = 12.5e6
"""Bytes a second: one of them is a second's download."""


def peers(*counts: int, speed: float = 1.0) -> list[StagePeer]:
    """So many at each stage, named a0, a1, b0 ..."""
    return [StagePeer(f"{'abcdef'[k]}{i}", k, speed, LINE) for k, n in enumerate(counts) for i in range(n)]


@pytest.mark.parametrize(("speed", "line"), [(-1.0, 1.0), (float("nan"), 1.0), (2 * MAX_SPEED, 1.0), (1.0, 0.0)])
def test_a_speed_that_cannot_be_is_refused(speed: float, line: float) -> None:
    with pytest.raises(ValueError, match="no speed"):
        StagePeer("a", 0, speed, line)


def test_a_stage_passes_what_its_peers_do_and_the_pipeline_what_its_slowest_stage_does() -> None:
    assert rates(THREE, peers(3, 2, 1, speed=2.0)) == [6.0, 4.0, 2.0]
    assert bottleneck(THREE, peers(3, 2, 1, speed=2.0)) == 2.0
    assert bottleneck(THREE, peers(3, 2)) == 0.0


def test_who_has_not_been_measured_counts_like_a_middling_peer_of_its_stage() -> None:
    stages = [Stage(0.2, 1.0), Stage(0.8, 1.0)]
    known = [StagePeer("a", 0, 4.0), StagePeer("b", 1, 2.0), StagePeer("c", 1, 1.0)]
    assert rates(stages, [*known, StagePeer("d", 0, 0.0)]) == pytest.approx([8.0, 3.0])  # the median is a's and c's
    assert rates(stages, [StagePeer("d", 0, 0.0)]) == [5.0, 0.0]


def test_a_newcomer_takes_the_slowest_stage_that_its_memory_holds() -> None:
    assert place(THREE, peers(2, 1, 2), "new", 0.0, 0.0) == 1
    assert place(THREE, peers(3, 1, 2), "new", 0.0, 0.0, frozenset({0, 2})) == 2


def test_newcomers_take_different_ones_of_equal_stages() -> None:
    taken = Counter(place(THREE, [], f"newcomer {i}", 0.0, 0.0) for i in range(60))
    assert min(taken[k] for k in range(3)) >= 10


def test_of_newcomers_at_once_the_earlier_ones_have_the_choice() -> None:
    earlier = replace(peers(0, 1)[0], loading=5.0)
    there = [*peers(1, 0, 1), earlier]
    assert place(THREE, there, "new", announced=6.0, now=20.0) != 1
    assert place(THREE, there, "new", announced=4.0, now=20.0) == 1


def test_nobody_counts_on_who_never_ends_loading() -> None:
    there = [*peers(1, 0, 1), replace(peers(0, 1)[0], loading=0.0)]
    assert bare(THREE, there, LOADING - 1) == frozenset()
    assert bare(THREE, there, LOADING) == {1}
    assert place(THREE, there, "new", LOADING, LOADING) == 1


def test_newcomers_who_rush_to_a_gap_spread_over_the_stages() -> None:
    swarm = StageSwarm(THREE)
    for stage in (0, 1):
        swarm.join(f"first {stage}", 1.0, LINE, stage)
    for number in range(7):
        swarm.join(f"newcomer {number}", 1.0, LINE)
    for _ in swarm.run(200):
        pass
    assert sorted(Counter(peer.stage for peer in swarm.holding()).values()) == [3, 3, 3]
    assert swarm.moved == []


def test_a_bare_stage_is_taken_by_whom_the_others_miss_least() -> None:
    there = [StagePeer("a", 0, 8.0), StagePeer("b", 0, 1.0), StagePeer("c", 1, 2.0), StagePeer("d", 1, 2.0)]
    assert next(iter(useful_moves(THREE, there, 0.0))) in ("c", "d")  # b would leave 1 where now are 2
    assert set(useful_moves(THREE, there, 0.0).values()) == {2}


def test_nobody_leaves_a_stage_that_it_alone_holds() -> None:
    alone = replace(peers(1)[0], name="coming", loading=0.0)
    assert useful_moves(THREE, [*peers(1, 1), alone], 0.0) == {}
    assert useful_moves(THREE, [*peers(1, 1), replace(alone, loading=None)], 0.0) == {"a0": 2, "coming": 2}


def test_nobody_moves_to_a_stage_that_its_memory_does_not_hold() -> None:
    there = [replace(peer, fits=frozenset({0, 1})) if peer.name == "a0" else peer for peer in peers(2, 1)]
    assert useful_moves(THREE, there, 0.0) == {"a1": 2}


@pytest.mark.parametrize(("small", "moves"), [(0.09, {}), (0.11, {"small": 0})])
def test_a_move_has_to_raise_the_bottleneck_by_a_tenth(small: float, moves: dict[str, int]) -> None:
    assert GAIN == 1.1
    two = [Stage(1 / 2, 0.0)] * 2
    there = [*peers(1), StagePeer("large", 1, 2.0, LINE), StagePeer("small", 1, small, LINE)]
    assert useful_moves(two, there, 0.0) == moves


def test_moves_that_gain_only_together_are_begun() -> None:
    """Two stages lack the same: to help one of them alone gains nothing."""
    assert set(useful_moves(THREE, peers(5, 2, 2), 0.0)) == {f"a{i}" for i in range(5)}


@pytest.mark.parametrize(("seconds", "moves"), [(300.0, True), (0.99 * HORIZON, False)])
def test_a_move_has_to_pay_off_within_ten_minutes(seconds: float, moves: bool) -> None:
    stages = [Stage(1 / 2, seconds * LINE)] * 2
    assert bool(useful_moves(stages, peers(4, 1), 0.0)) == moves
    assert useful_moves(stages, peers(2), 0.0)  # where a stage is bare any move does


def test_a_peer_rests_after_a_move_and_its_owner_may_pin_it() -> None:
    moved, *pinned = [replace(peer, moved=0.0, pinned=peer.name != "a0") for peer in peers(4, 2, 1)]
    assert useful_moves(THREE, [moved, *pinned], REST - 1) == {}
    assert useful_moves(THREE, [moved, *pinned], REST) == {"a0": 2}


def test_for_a_bare_stage_a_peer_does_not_rest_but_its_owner_may_pin_it() -> None:
    moved, pinned = replace(peers(1)[0], moved=0.0), replace(peers(2)[1], pinned=True)
    assert useful_moves(THREE, [moved, pinned, *peers(0, 1)], 1.0) == {"a0": 2}
    assert useful_moves(THREE, [replace(moved, pinned=True), pinned, *peers(0, 1)], 1.0) == {}


def announced(*times: float | None) -> list[StagePeer]:
    """As many peers at the first stage, that want to go to the third one since these times; one at the second."""
    moves = [None if time is None else Move(2, time) for time in times]
    first = [replace(peer, intends=move) for peer, move in zip(peers(len(times)), moves, strict=True)]
    return [*first, *peers(0, 1)]


def test_a_move_is_announced_and_begun_after_a_second_look_only() -> None:
    assert intend(THREE, announced(None, None), "a0", 7.0) == Move(2, 7.0)
    assert intend(THREE, announced(7.0, None), "a0", 8.0) == Move(2, 7.0)
    assert not may_begin(THREE, announced(None, None), "a0", 7.0)
    assert not may_begin(THREE, announced(7.0, None), "a0", 7.0 + BARE_LOOK - 1)
    assert may_begin(THREE, announced(7.0, None), "a0", 7.0 + BARE_LOOK)


def test_an_announcement_that_gains_nothing_any_more_is_taken_back() -> None:
    there = [*announced(0.0, None), replace(peers(0, 0, 1)[0], loading=1.0)]
    assert intend(THREE, there, "a0", 2.0) is None
    assert not may_begin(THREE, there, "a0", BARE_LOOK)


def test_peers_have_their_turns_the_better_one_first() -> None:
    both = announced(0.0, 0.0)
    assert may_begin(THREE, both, "a0", BARE_LOOK)
    assert not may_begin(THREE, both, "a1", BARE_LOOK)
    assert not may_begin(THREE, both, "a1", BARE_LOOK + TURN)


def test_who_is_announced_and_never_begins_holds_nobody_back_for_long() -> None:
    late = BARE_LOOK + 2 * WINDOW
    there = announced(0.0, late - BARE_LOOK - TURN)
    assert not may_begin(THREE, there, "a0", BARE_LOOK + WINDOW)  # its turn is over
    assert intend(THREE, there, "a0", BARE_LOOK + WINDOW) == Move(2, BARE_LOOK + WINDOW)
    assert not may_begin(THREE, there, "a1", late - 1)
    assert may_begin(THREE, there, "a1", late)


def test_one_moves_at_a_time_but_nobody_waits_where_a_stage_is_bare() -> None:
    moving = StagePeer("moving", 1, 1.0, LINE, loading=0.0, moved=0.0)
    few = [replace(peer, intends=Move(2, 0.0)) if peer.name == "a0" else peer for peer in peers(6, 3, 1)]
    assert not may_begin(THREE, few, "a0", SECOND_LOOK - 1)
    assert may_begin(THREE, few, "a0", SECOND_LOOK)
    assert not may_begin(THREE, [*few, moving], "a0", SECOND_LOOK)
    assert may_begin(THREE, [*announced(0.0, None), moving], "a0", BARE_LOOK)


def test_six_two_and_one_become_three_each_one_after_the_other() -> None:
    found = settle((6, 2, 1))
    assert found.began == pytest.approx(1 / 3)
    assert found.ended == pytest.approx(1.0)
    assert found.moves == 3
    assert found.seconds is not None
    assert found.seconds <= 120 + found.download


@pytest.mark.parametrize("liars", [(), ("0 0",)])
def test_a_bare_stage_is_soon_taken_though_the_best_peer_only_announces_it(liars: tuple[str, ...]) -> None:
    swarm = StageSwarm(THREE, liars=liars)
    for stage, count in enumerate((3, 1, 1)):
        for number in range(count):
            swarm.join(f"{stage} {number}", 1.0, LINE, stage)
    for _ in swarm.run(30):
        pass
    swarm.leave("2 0")
    began = swarm.now
    seconds = next(now - began for now in swarm.run(200) if swarm.bottleneck() > 0)
    assert seconds <= EXPIRY + DELAY + BARE_LOOK + 2 * LOOK + 1 + 2 * WINDOW * len(liars)
    assert [name for _, name, _ in swarm.moved] == ["0 1" if liars else "0 0"]


@pytest.mark.parametrize("seed", [0, 7])
def test_in_an_hour_of_coming_and_going_stages_are_held_and_nobody_moves_back_and_forth(seed: int) -> None:
    hour = balance(seed)
    assert hour.moves >= 5
    assert hour.unanswered == 0
    assert hour.too_soon == 0
    assert hour.ratio > hour.unmoved


def test_in_a_calm_hour_nobody_moves_back_and_forth() -> None:
    swarm = StageSwarm([Stage(0.3, 50e6), Stage(0.4, 50e6), Stage(0.3, 50e6)])
    for number in range(12):
        swarm.join(f"peer {number}", (1.0, 2.0, 4.0)[number % 3], LINE)
    for _ in swarm.run(3600):
        pass
    late = [name for now, name, _ in swarm.moved if now > 900]
    assert late == []
    assert len(swarm.moved) <= CANDIDATES
