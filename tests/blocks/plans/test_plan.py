"""Newcomers take what is served worst; servers move seldom, one at a time, and never away from a layer of their own."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.lib.serving_swarm import EXPIRY, LOAD, LOOK, ServingSwarm
from dedloc_kit.blocks.plans.plan import (
    GAIN,
    HELD,
    LOOK_ROUND,
    MAX_LAYERS,
    MOVING,
    REST,
    REST_IN_NEED,
    SECOND_LOOK,
    SECOND_LOOK_IN_NEED,
    Intention,
    LayerRange,
    Server,
    bottleneck,
    draw,
    intend,
    may_begin,
    may_change,
    place,
    unserved,
    useful_moves,
)


def served(*spans: str, speed: float = 1.0) -> list[Server]:
    """Servers of that speed, named a, b, c ...; a span is written `0:4`."""
    return [
        Server("abcdefghijklmnop"[i], LayerRange(*map(int, span.split(":"))), speed) for i, span in enumerate(spans)
    ]


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (2, 2), (3, 2), (0, MAX_LAYERS + 1)])
def test_a_span_that_cannot_be_is_refused(begin: int, end: int) -> None:
    with pytest.raises(ValueError, match="no span"):
        LayerRange(begin, end)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_speed_that_cannot_be_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="no speed"):
        Server("a", LayerRange(0, 2), speed)


def test_layers_that_nobody_serves_are_named() -> None:
    assert unserved(LayerRange(0, 12), served("0:4", "6:9")) == (LayerRange(4, 6), LayerRange(9, 12))
    assert unserved(LayerRange(1, 8), served("0:4", "6:9")) == (LayerRange(4, 6),)
    assert unserved(LayerRange(0, 9), served("0:4", "4:9")) == ()


def test_the_bottleneck_is_the_worst_served_layer() -> None:
    assert bottleneck(8, [Server("a", LayerRange(0, 8), 2.0), Server("b", LayerRange(2, 8), 3.0)]) == 2.0
    assert bottleneck(8, served("0:4")) == 0.0


def test_a_newcomer_takes_the_gap() -> None:
    assert place(12, served("0:4", "8:12", "0:4"), "new", 1.0, 4) == LayerRange(4, 8)


def test_a_newcomer_takes_the_slowest_layers_where_there_is_no_gap() -> None:
    servers = [Server("a", LayerRange(0, 6), 5.0), Server("b", LayerRange(6, 12), 2.0)]
    assert place(12, servers, "new", 1.0, 6) == LayerRange(6, 12)


def test_a_newcomer_with_room_for_more_takes_the_whole_model() -> None:
    assert place(12, [], "new", 1.0, 100) == LayerRange(0, 12)


def test_newcomers_take_different_ones_of_equal_spans() -> None:
    taken = Counter(place(12, [], f"newcomer {i}", 1.0, 6) for i in range(40))
    assert taken.keys() == {LayerRange(0, 6), LayerRange(6, 12)}
    assert min(taken.values()) >= 8


def test_gaps_stay_in_one_piece() -> None:
    """A span in the middle of what is free would leave two gaps that no single server of that size fills."""
    servers: list[Server] = []
    for name in "abcd":
        servers.append(Server(name, place(48, servers, name, 1.0, 12), 1.0))
    assert unserved(LayerRange(0, 48), servers) == ()


def test_a_gap_is_filled_by_who_is_not_needed_where_it_is() -> None:
    servers = served("0:4", "0:4", "4:8")
    assert set(useful_moves(12, servers, now=0.0)) == {("a", LayerRange(8, 12)), ("b", LayerRange(8, 12))}


def test_nobody_leaves_a_layer_that_is_served_by_it_alone() -> None:
    assert useful_moves(12, served("0:4", "4:8"), now=0.0) == ()


def test_servers_slide_one_after_the_other_where_no_single_move_fills_a_gap() -> None:
    """Only layer 4 is served twice, and 12 by nobody: its second server must make room for the third one first."""
    servers = served("0:5", "4:8", "8:12")
    assert {name for name, _ in useful_moves(13, servers, now=0.0)} == {"b"}  # were c first, 8 would have none
    moved = []
    while moves := useful_moves(13, servers, now=0.0):
        name, span = moves[0]
        servers = [Server(s.name, span, s.speed) if s.name == name else s for s in servers]
        moved.append(name)
    assert unserved(LayerRange(0, 13), servers) == ()
    assert moved == ["b", "c"]


def test_a_move_has_to_raise_the_bottleneck_by_a_quarter() -> None:
    def two_halves(small: float) -> list[Server]:
        halves = [Server("a", LayerRange(0, 4), 4.0), Server("b", LayerRange(4, 8), 4.0)]
        return [*halves, Server("c", LayerRange(0, 4), small), Server("d", LayerRange(0, 4), small)]

    assert GAIN == 1.25
    assert useful_moves(8, two_halves(0.9), now=0.0) == ()
    assert set(useful_moves(8, two_halves(1.0), now=0.0)) == {("c", LayerRange(4, 8)), ("d", LayerRange(4, 8))}


def test_two_moves_that_gain_only_together_are_begun() -> None:
    """The second and the third quarter lack the same: to fill one of them alone gains nothing."""
    servers = served("0:4", "4:8", "8:12", "0:4", "0:4", "0:4", "12:16", "12:16")
    moves = useful_moves(16, servers, now=0.0)
    assert {span for _, span in moves} == {LayerRange(4, 8), LayerRange(8, 12)}


def test_who_has_moved_rests_and_who_is_pinned_stays() -> None:
    rich, poor = served("0:4", "0:4", "0:4", "4:8"), served("0:4", "0:4", "0:4")
    for servers, rest in ((rich, REST), (poor, REST_IN_NEED)):
        resting = [Server(s.name, s.span, s.speed, moved=100.0) for s in servers]
        assert useful_moves(8, resting, now=100.0 + rest - 1) == ()
        assert useful_moves(8, resting, now=100.0 + rest)
        assert useful_moves(8, [Server(s.name, s.span, s.speed, pinned=True) for s in servers], now=0.0) == ()


CROWD = served("0:4", "0:4", "0:4", "4:8")
MINE = Intention("a", LayerRange(4, 8), announced=100.0)


def test_a_move_is_announced_kept_and_taken_back() -> None:
    announced = intend(8, CROWD, "a", None, now=100.0)
    assert announced == MINE
    assert intend(8, CROWD, "a", announced, now=130.0) == announced
    assert intend(8, served("0:4", "4:8", "4:8"), "a", announced, now=130.0) is None
    assert intend(8, CROWD, "d", None, now=100.0) is None
    late = 100.0 + HELD / 2
    assert intend(8, CROWD, "a", announced, now=late) == Intention("a", LayerRange(4, 8), late)


def test_a_move_begins_only_after_a_second_look() -> None:
    assert not may_begin(8, CROWD, MINE, [], now=100.0 + SECOND_LOOK - 1)
    assert may_begin(8, CROWD, MINE, [], now=100.0 + SECOND_LOOK)
    assert not may_begin(8, served("0:4", "4:8", "4:8"), MINE, [], now=100.0 + SECOND_LOOK)
    poor = served("0:4", "0:4")
    assert not may_begin(8, poor, MINE, [], now=100.0 + SECOND_LOOK_IN_NEED - 1)
    assert may_begin(8, poor, MINE, [], now=100.0 + SECOND_LOOK_IN_NEED)


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        (Intention("b", LayerRange(4, 8), announced=99.0), True),
        (Intention("b", LayerRange(4, 8), announced=101.0), False),
        (Intention("b", LayerRange(4, 8), announced=100.0), False),  # at once: names decide
        (Intention("b", LayerRange(0, 4), announced=99.0), False),  # gains nothing
        (Intention("d", LayerRange(0, 4), announced=99.0), False),  # would leave a layer
        (Intention("z", LayerRange(4, 8), announced=99.0), False),  # nobody that is there
        (Intention("d", LayerRange(0, 4), announced=150.0, begun=155.0), True),
        (Intention("d", LayerRange(0, 4), announced=0.0, begun=160.0 - MOVING), False),
        (Intention("b", LayerRange(4, 8), announced=160.0 - HELD), False),
        (Intention("a", LayerRange(4, 8), announced=99.0), False),  # my own
    ],
)
def test_the_earliest_of_the_moves_that_gain_holds(other: Intention, waits: bool) -> None:
    assert may_begin(8, CROWD, MINE, [other], now=160.0) is not waits


@pytest.mark.parametrize(
    ("other", "waits"),
    [
        (Intention("before", LayerRange(0, 4), announced=100.0), True),
        (Intention("before", LayerRange(0, 4), announced=0.0), True),
        (Intention("before", LayerRange(0, 4), announced=110.0 - HELD), False),  # it had its time
        (Intention("after", LayerRange(0, 4), announced=0.0), False),
        (Intention("after", LayerRange(0, 4), announced=0.0, begun=100.0), True),
        (Intention("after", LayerRange(0, 4), announced=0.0, begun=110.0 - MOVING), False),
    ],
)
def test_servers_change_their_version_one_after_the_other(other: Intention, waits: bool) -> None:
    names = sorted(("a", "b", "c"), key=lambda name: draw("v", name))
    other = replace(other, server=names[0 if other.server == "before" else 2])
    mine = Intention(names[1], LayerRange(0, 4), announced=100.0)
    assert may_change("v", mine, [other], now=100.0 + LOOK_ROUND) is not waits
    assert not may_change("v", mine, [], now=100.0 + LOOK_ROUND - 1)


def test_of_many_that_want_the_same_gap_one_moves() -> None:
    swarm = ServingSwarm(8)
    for i in range(12):
        swarm.join(f"server {i}", 1.0, 4, LayerRange(0, 4))
    swarm.join("last", 1.0, 4, LayerRange(4, 8))
    swarm.leave("last")
    filled = next(now for now in swarm.run(300) if swarm.bottleneck() > 0)
    assert len(swarm.moved) == 1
    assert filled <= EXPIRY + SECOND_LOOK_IN_NEED + LOAD + 3 * LOOK


def test_many_that_balance_end_move_one_at_a_time_and_stay() -> None:
    swarm = ServingSwarm(8)
    for i in range(8):
        swarm.join(f"server {i}", 1.0, 4, LayerRange(0, 4) if i else LayerRange(4, 8))
    bottlenecks = [swarm.bottleneck() for _ in swarm.run(2 * 3600)]
    assert bottlenecks[-1] == 4
    assert bottlenecks == sorted(bottlenecks)
    assert len(swarm.moved) == 3
    assert all(later - earlier >= LOAD for (earlier, *_), (later, *_) in pairwise(swarm.moved))
    assert max(Counter(name for _, name, _ in swarm.moved).values()) == 1


def test_newcomers_of_the_same_second_take_different_gaps() -> None:
    swarm = ServingSwarm(16)
    for name in ("a", "b", "c", "d"):
        swarm.join(name, 1.0, 4)
    for _ in swarm.run(120):
        pass
    assert swarm.bottleneck() == 1.0
    assert swarm.moved == []


def test_a_server_that_comes_and_goes_moves_nobody_back_and_forth() -> None:
    """Every two minutes half of the swarm's second half goes or comes back."""
    swarm = ServingSwarm(8)
    for i in range(6):
        swarm.join(f"server {i}", 1.0, 4, LayerRange(0, 4) if i < 3 else LayerRange(4, 8))
    for now in swarm.run(3600):
        if now % 120 == 0:
            swarm.join("flapping", 3.0, 4, LayerRange(4, 8)) if now % 240 else swarm.leave("flapping")
    assert max(Counter(name for _, name, _ in swarm.moved).values(), default=0) <= 1
