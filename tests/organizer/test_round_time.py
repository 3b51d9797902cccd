"""How long a round is said to take, beside what benchmarks/rounds.py found (benchmarks/README.md has these figures)."""

import math
from dataclasses import replace
from statistics import NormalDist, fmean

import pytest

from dedloc_kit.organizer import round_time as module
from dedloc_kit.organizer.round_time import (
    PART_BYTES,
    PATIENCE,
    SHARE_OF_BOTH_WAYS,
    SHARE_OF_LINE,
    STREAM_SECONDS,
    Line,
    RoundTime,
    _in_rows,
    both_ways_seconds,
    half_seconds,
    round_time,
    row_rate,
    rows_of,
    standing_rows,
)
from dedloc_kit.swarm.averaging.matchmaking.group import Member
from dedloc_kit.swarm.averaging.matchmaking.row_meeting import evened
from dedloc_kit.swarm.directory.rows import Division, rows_for
from dedloc_kit.swarm.network.kinds import EPOCH
from dedloc_kit.swarm.rounds.timing import MIN_PATIENCE

MBIT = 1e6 / 8
VECTOR = 18e6 * 4.125 / 8
V = 10_000_000.0
AGES = 1e12
MEASURED = {16: 13.0, 64: 15.0}
"""Seconds of a round in one group in which nobody dies, by the number of members; parts are four times as long."""
MEASURED_LENT = {0: 51.5, 1: 31.9, 2: 26.9}
"""Six clients and so many auxiliary peers, all on equal lines (tests/swarm/averaging/test_lent_lines.py)."""
MEASURED_DEATH = {128: 35.6}
"""In two rows one dies when the first averages are on their way."""
MEASURED_IN_ROWS = {256: 25.9, 512: 31.0}
"""In 4 and 8 rows, into which peers were dealt evenly, and of whom 2 % died."""


def benchmarks_lines(count: int) -> list[Line]:
    """Nine in ten between 10 and 100 Mbit/s, evenly over their distribution; three in ten reduce."""
    middle, spread = math.log(10 * 100) / 2, math.log(10) / 2 / 1.645
    lines = []
    for number in range(count):
        rate = math.exp(NormalDist(middle, spread).inv_cdf((number + 0.5) / count))
        lines.append(Line(1, MBIT * min(100.0, max(10.0, rate)), reachable=number % 10 < 3))
    return lines


def in_one_group(count: int, monkeypatch: pytest.MonkeyPatch) -> RoundTime:
    with monkeypatch.context() as patched:
        patched.setattr(module, "ROW", count)
        return round_time(benchmarks_lines(count), VECTOR, VECTOR, AGES)


@pytest.mark.parametrize("count", MEASURED)
def test_a_round_takes_as_long_as_it_was_measured(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 4 * PART_BYTES)
    found = in_one_group(count, monkeypatch)
    assert found.rows == 1
    assert found.network == pytest.approx(MEASURED[count], rel=0.2)
    assert found.vanishing == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize("auxiliary", MEASURED_LENT)
def test_clients_and_helpers_take_as_long_as_it_was_measured(auxiliary: int) -> None:
    clients, reducers = Line(6, 100_000.0, reachable=False), Line(1 + auxiliary, 100_000.0, reachable=True, gives=False)
    found = round_time([clients, reducers], 1.4e6 * 4.13 / 8, 1.4e6 * 4.13 / 8, AGES)
    assert found.exchanging == pytest.approx(MEASURED_LENT[auxiliary], rel=0.1)


@pytest.mark.parametrize("count", MEASURED_DEATH)
def test_a_reducer_that_dies_late_costs_what_was_measured(count: int) -> None:
    found = round_time(benchmarks_lines(count), VECTOR, VECTOR, AGES)
    assert found.network + PATIENCE + found.averaging == pytest.approx(MEASURED_DEATH[count], rel=0.1)
    assert PATIENCE == MIN_PATIENCE


@pytest.mark.parametrize("count", MEASURED_IN_ROWS)
def test_rounds_in_rows_take_as_long_as_they_were_measured(count: int) -> None:
    lines = benchmarks_lines(count)
    calm = round_time(lines, VECTOR, VECTOR, AGES)
    found = round_time(lines, VECTOR, VECTOR, stay=calm.network / 0.02)
    assert found.rows == rows_for(count)
    assert found.network + found.vanishing == pytest.approx(MEASURED_IN_ROWS[count], rel=0.15)


def test_into_as_many_rows_as_a_swarm_is_divided() -> None:
    assert [rows_of(count) for count in range(1, 5000)] == [rows_for(count) for count in range(1, 5000)]


def rows_found(clients: int, reducers: int) -> float:
    """The mean over epochs of what becomes of the rows that chance has dealt."""
    found, division = [], Division(rows_for(clients + reducers))
    for epoch in range(30):
        names = [f"peer{epoch}x{n}" for n in range(clients + reducers)]
        members = {
            peer: Member(peer=peer, bandwidth=MBIT, client_mode=n < clients, group_size=len(names))
            for n, peer in enumerate(names)
        }
        rows = evened(members, {peer: division.row_of(peer) for peer in names})
        found.append(len(set(rows.values())) or 1)
    return fmean(found)


@pytest.mark.parametrize(("clients", "reducers"), [(100, 3), (100, 4), (100, 6), (200, 12)])
def test_rows_are_fewer_on_average_where_few_reduce(clients: int, reducers: int) -> None:
    told = standing_rows(rows_of(clients + reducers), reducers)
    assert told == pytest.approx(rows_found(clients, reducers), rel=0.2)


def test_between_two_numbers_of_rows_a_round_takes_as_long_as_chance_has_it() -> None:
    lines = [Line(100, 50 * MBIT, reachable=False), Line(4, 1000 * MBIT, reachable=True, gives=False)]
    found = round_time(lines, V, V, AGES)
    assert found.rows == pytest.approx(4 / 3.5)
    one, two = (_in_rows(rows, lines, V, V, AGES).exchanging for rows in (1, 2))
    assert found.exchanging == pytest.approx(one + (4 / 3.5 - 1) * (two - one))


@pytest.mark.parametrize("count", [128, 256, 512, 1024])
def test_the_slowest_row_is_hardly_slower_than_others_though_chance_says_who_is_in_which(count: int) -> None:
    lines, rows = benchmarks_lines(count), rows_for(count)
    members = {
        f"peer{n}": Member(peer=f"peer{n}", bandwidth=line.rate, client_mode=not line.reachable, group_size=count)
        for n, line in enumerate(lines)
    }
    slowest = []
    for epoch in range(20):
        division = Division(rows, epoch * EPOCH)
        numbers = evened(members, {peer: division.row_of(peer) for peer in members})
        found = [[lines[n] for n, peer in enumerate(members) if numbers[peer] == row] for row in set(numbers.values())]
        slowest.append(max(half_seconds(lines, row, VECTOR) for row in found))
    assert half_seconds(lines, lines, VECTOR, rows) == pytest.approx(fmean(slowest), rel=0.1)


def test_owners_exchange_their_rows_means_and_averages_between_the_halves() -> None:
    lines = [Line(128, 25 * MBIT, reachable=True)]
    found = round_time(lines, V, 2 * V, AGES)
    one_row = round_time([replace(lines[0], count=64)], V, 2 * V, AGES)
    assert found.rows == 2
    assert found.exchanging - found.averaging == pytest.approx(one_row.averaging / 2), "averages are twice as long"
    assert row_rate(lines, 2) == pytest.approx(64 * 25 * MBIT), "with equal lines all rows are alike"
    between = (2 * 2 * V + 2 * V) / 2 / (64 * 25 * MBIT)  # half of the values is finished in the own row
    assert found.averaging - one_row.averaging == pytest.approx(between / SHARE_OF_LINE)


def test_the_more_members_vanish_the_longer_rounds_take_on_average() -> None:
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


def test_with_hundreds_of_members_introductions_are_felt_and_streams_hardly() -> None:
    few, many = (round_time(benchmarks_lines(count), VECTOR, VECTOR, AGES) for count in (50, 500))
    assert many.telling == pytest.approx(10 * few.telling)
    assert few.streams == pytest.approx((49 + 14) * STREAM_SECONDS)
    assert few.streams < many.streams < 2 * few.streams, "in rows each has not many more"
