"""How long a round is said to take, beside what benchmarks/rounds.py found (benchmarks/README.md has these figures)."""

import math
from statistics import NormalDist

import pytest

from dedloc_kit.organizer.round_time import (
    PATIENCE,
    SHARE_OF_LINE,
    STREAM_SECONDS,
    Line,
    half_seconds,
    round_time,
)
from dedloc_kit.swarm.rounds.timing import MIN_PATIENCE

MBIT = 1e6 / 8
VECTOR = 18e6 * 4.125 / 8
V = 10_000_000.0
AGES = 1e12
MEASURED = {16: 19.8, 64: 19.6, 128: 23.1}
"""Seconds of a round in which nobody dies, by the number of members."""
MEASURED_DEATH = (31.0, 35.0)
"""With 64 members, one of whom dies that reduces."""


def benchmarks_lines(count: int) -> list[Line]:
    """Nine in ten between 10 and 100 Mbit/s, evenly over their distribution; three in ten reduce."""
    middle, spread = math.log(10 * 100) / 2, math.log(10) / 2 / 1.645
    lines = []
    for number in range(count):
        rate = math.exp(NormalDist(middle, spread).inv_cdf((number + 0.5) / count))
        lines.append(Line(1, MBIT * min(100.0, max(10.0, rate)), reachable=number % 10 < 3))
    return lines


@pytest.mark.parametrize("count", MEASURED)
def test_a_round_takes_as_long_as_it_was_measured(count: int) -> None:
    found = round_time(benchmarks_lines(count), VECTOR, VECTOR, AGES)
    assert found.network == pytest.approx(MEASURED[count], rel=0.1)
    assert found.vanishing == pytest.approx(0.0, abs=1e-3)


def test_a_reducer_that_dies_costs_what_was_measured() -> None:
    found = round_time(benchmarks_lines(64), VECTOR, VECTOR, AGES)
    least, most = MEASURED_DEATH
    assert least <= found.network + PATIENCE + found.averaging <= most
    assert PATIENCE == MIN_PATIENCE


def test_the_more_members_vanish_the_longer_rounds_take_on_average() -> None:
    lines = benchmarks_lines(64)
    calm = round_time(lines, VECTOR, VECTOR, AGES)
    seconds = calm.network + calm.streams
    for deaths in (0.5, 2.0):  # in a round
        found = round_time(lines, VECTOR, VECTOR, stay=64 * seconds / deaths)
        expected = min(1.0, deaths) * PATIENCE + deaths * 21 / 64 * calm.averaging
        assert found.vanishing == pytest.approx(expected)
    clients = [Line(64, 10 * MBIT, reachable=False), Line(1, 1000 * MBIT, reachable=True, gives=False)]
    assert round_time(clients, V, V, stay=1.0).vanishing == PATIENCE, "the coordinator does not vanish"


def test_a_coordinator_that_alone_reduces_receives_and_then_sends_for_everyone() -> None:
    clients, coordinator = Line(20, 50 * MBIT, reachable=False), Line(1, 100 * MBIT, reachable=True, gives=False)
    found = round_time([clients, coordinator], V, 2 * V, AGES)
    assert found.collecting == pytest.approx(20 * V / (100 * MBIT) / SHARE_OF_LINE)
    assert found.averaging == pytest.approx(2 * found.collecting)
    assert found.streams == pytest.approx(20 * STREAM_SECONDS)
    quick = Line(1, 100_000 * MBIT, reachable=True, gives=False)
    assert half_seconds([clients], [clients, quick], V) == pytest.approx(V / (50 * MBIT)), "their own lines decide"


def test_equal_peers_that_all_reduce_exchange_what_a_butterfly_does() -> None:
    lines = [Line(4, 25 * MBIT, reachable=True)]
    assert 2 * half_seconds(lines, lines, V) == pytest.approx(2 * 3 / 4 * V / (25 * MBIT))


def test_with_hundreds_of_members_introductions_and_streams_are_felt() -> None:
    few, many = (round_time(benchmarks_lines(count), VECTOR, VECTOR, AGES) for count in (50, 500))
    assert many.telling == pytest.approx(10 * few.telling)
    assert many.streams > 9 * few.streams
    assert many.collecting == pytest.approx(few.collecting, rel=0.1), "the lines are as fast, and there are more"
