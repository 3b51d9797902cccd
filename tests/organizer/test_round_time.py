"""How long a round is said to take, beside what benchmarks/rounds.py found (benchmarks/README.md has these figures)."""

import math
from statistics import NormalDist

import pytest

from dedloc_kit.organizer import round_time as module
from dedloc_kit.organizer.round_time import (
    PART_BYTES,
    PATIENCE,
    SHARE_OF_BOTH_WAYS,
    STREAM_SECONDS,
    Line,
    both_ways_seconds,
    half_seconds,
    rate_of,
    round_time,
)
from dedloc_kit.swarm.rounds.timing import MIN_PATIENCE

MBIT = 1e6 / 8
VECTOR = 18e6 * 4.125 / 8
V = 10_000_000.0
AGES = 1e12
MEASURED = {16: 13.0, 64: 15.0}
"""Seconds of a round in one group in which nobody dies, by the number of members; parts are four times as long."""
MEASURED_LENT = {0: 51.5, 1: 31.9, 2: 26.9}
"""Six clients and so many auxiliary peers, all on equal lines (tests/swarm/averaging/test_lent_lines.py)."""


def benchmarks_lines(count: int) -> list[Line]:
    """Nine in ten between 10 and 100 Mbit/s, evenly over their distribution; three in ten reduce."""
    middle, spread = math.log(10 * 100) / 2, math.log(10) / 2 / 1.645
    lines = []
    for number in range(count):
        rate = math.exp(NormalDist(middle, spread).inv_cdf((number + 0.5) / count))
        lines.append(Line(1, MBIT * min(100.0, max(10.0, rate)), reachable=number % 10 < 3))
    return lines


@pytest.mark.parametrize("count", MEASURED)
def test_a_round_takes_as_long_as_it_was_measured(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 4 * PART_BYTES)
    found = round_time(benchmarks_lines(count), VECTOR, VECTOR, AGES)
    assert found.network == pytest.approx(MEASURED[count], rel=0.2)
    assert found.vanishing == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("auxiliary", MEASURED_LENT)
def test_clients_and_helpers_take_as_long_as_it_was_measured(auxiliary: int) -> None:
    clients, reducers = Line(6, 100_000.0, reachable=False), Line(1 + auxiliary, 100_000.0, reachable=True, gives=False)
    found = round_time([clients, reducers], 1.4e6 * 4.13 / 8, 1.4e6 * 4.13 / 8, AGES)
    assert found.exchanging == pytest.approx(MEASURED_LENT[auxiliary], rel=0.1)


def test_all_reducers_together_are_as_fast_as_their_lines() -> None:
    lines = [Line(4, 25 * MBIT, reachable=True), Line(2, 100 * MBIT, reachable=False)]
    assert rate_of(lines) == 4 * 25 * MBIT


def test_the_more_members_vanish_the_longer_rounds_take_on_average() -> None:
    assert PATIENCE == MIN_PATIENCE
    lines = benchmarks_lines(64)
    calm = round_time(lines, VECTOR, VECTOR, AGES)
    seconds = calm.network + calm.streams
    for deaths in (0.5, 2.0):  # in a round
        found = round_time(lines, VECTOR, VECTOR, stay=64 * seconds / deaths)
        # While averages are made and sent, the last of the reducers that die is at any moment in small steps.
        step, each = calm.averaging / 1e4, deaths * 21 / 64 / seconds
        moments = [(n + 0.5) * step for n in range(10_000)]
        lost = sum(t * each * math.exp(-each * (calm.averaging - t)) * step for t in moments)
        assert found.vanishing == pytest.approx(min(1.0, deaths) * PATIENCE + lost)
    clients = [Line(64, 10 * MBIT, reachable=False), Line(1, 1000 * MBIT, reachable=True, gives=False)]
    assert round_time(clients, V, V, stay=1.0).vanishing == PATIENCE, "the coordinator does not vanish"


def test_a_coordinator_that_alone_reduces_receives_from_everyone_while_it_sends_to_everyone() -> None:
    clients, coordinator = Line(20, 50 * MBIT, reachable=False), Line(1, 100 * MBIT, reachable=True, gives=False)
    found = round_time([clients, coordinator], V, 2 * V, AGES)
    seconds = 20 * 2 * V / (100 * MBIT)
    assert both_ways_seconds([clients, coordinator], V, 2 * V) == pytest.approx(seconds)
    assert found.exchanging == pytest.approx(seconds * (1 + PART_BYTES / (2 * V)) / SHARE_OF_BOTH_WAYS)
    sparse = round_time([clients, coordinator], V / 20, 2 * V, AGES)
    assert sparse.exchanging == pytest.approx(found.exchanging), "what comes down decides"
    assert found.streams == pytest.approx(20 * STREAM_SECONDS)
    quick = Line(1, 100_000 * MBIT, reachable=True, gives=False)
    assert half_seconds([clients], [clients, quick], V) == pytest.approx(V / (50 * MBIT)), "their own lines decide"


def test_equal_peers_that_all_reduce_exchange_what_a_butterfly_does() -> None:
    lines = [Line(4, 25 * MBIT, reachable=True)]
    assert 2 * half_seconds(lines, lines, V) == pytest.approx(2 * 3 / 4 * V / (25 * MBIT))
    assert both_ways_seconds(lines, V, V) == pytest.approx(2 * 3 / 4 * V / (25 * MBIT)), "both go up the same line"


def test_with_hundreds_of_members_introductions_and_streams_are_felt() -> None:
    few, many = (round_time(benchmarks_lines(count), VECTOR, VECTOR, AGES) for count in (50, 500))
    assert many.telling == pytest.approx(10 * few.telling)
    assert few.streams == pytest.approx((50 + 15 - 2) * STREAM_SECONDS)
    assert many.streams == pytest.approx((500 + 150 - 2) * STREAM_SECONDS)
