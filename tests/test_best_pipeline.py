"""The pure parts of the benchmark of pipelines: the optimum, fixed pipelines, and what has counted."""

import pytest

from benchmarks.lib.best_pipeline import StagePeer, best_rate, chains, driven_tensors, in_chains, served_tensors, shares
from benchmarks.lib.counted import Added, Counts, count
from benchmarks.lib.network import Line
from benchmarks.lib.pipeline_cases import clients, equal, extra_per_death, uneven
from benchmarks.lib.pipeline_network import Measured

LINE = Line(100.0, 100.0, 30.0)


def test_the_slowest_stage_is_the_optimum() -> None:
    seconds = [(0, 1.0), (0, 1.0), (1, 0.5), (1, 1.0), (2, 4.0), (2, 1.0)]
    assert best_rate([StagePeer(*each) for each in seconds]) == pytest.approx(1.25)
    assert best_rate(equal(LINE)) == pytest.approx(3.0)


def test_a_line_that_is_too_thin_bounds_the_optimum() -> None:
    thin = [StagePeer(stage, 0.1, mbit=8.0 if stage == 1 else 8000.0) for stage in range(3)]
    # A microbatch brings it three tensors; others drive.
    assert best_rate(thin, tensor=100_000) == pytest.approx(10 / 3)


def test_what_drivers_send_is_what_stage_peers_receive() -> None:
    each = [served_tensors(stage, 4) for stage in range(4)]
    assert each[0] == (1, 1)
    assert each[1] == (3, 2)
    assert each[3] == (1, 1)
    assert driven_tensors(4) == (6, 8) == (sum(sent for _, sent in each), sum(received for received, _ in each))


def test_a_fixed_pipeline_has_one_peer_of_each_stage_and_the_quick_one_most_of_the_batch() -> None:
    slow_and_quick = [StagePeer(stage, seconds) for seconds in (3.0, 1.0) for stage in range(3)]
    peers = in_chains(slow_and_quick)
    assert [[peer.stage for peer in chain] for chain in chains(peers)] == [[0, 1, 2], [0, 1, 2]]
    assert shares(peers, 40) == [10, 30]
    assert sum(shares(peers, 41)) == 41
    assert shares(peers, 2) == [1, 1]


def test_speeds_and_lines_are_mixed_in_the_same_way_for_each_seed() -> None:
    assert uneven(3) == uneven(3) != uneven(4)
    assert sorted(peer.seconds for peer in uneven(3)) == [1.0] * 3 + [2.0] * 3 + [4.0] * 3
    assert [peer.stage for peer in clients(LINE) if not peer.client_mode] == [0, 1, 2]


def test_a_microbatch_that_one_stage_lacks_is_lost_unless_its_driver_is() -> None:
    added = [Added(0, stage, "a", number) for stage in range(3) for number in range(4)]
    assert count(added, 3, {"a"}) == Counts(0, 0, 0)
    assert count(added[:-1], 3, {"a"}) == Counts(lost=1, twice=0, partly=0)
    assert count(added[:-1], 3, set()) == Counts(lost=0, twice=0, partly=1)
    assert count([*added, added[5], added[5]], 3, {"a"}) == Counts(lost=0, twice=2, partly=0)


def test_what_a_death_costs_is_told_beside_the_dead_peers_share_of_the_work() -> None:
    found = Measured(
        whole=240,
        rates=[2.0],
        rate=2.0,
        counts=Counts(0, 0, 0),
        again=12,
        deaths=2,
        sent=[],
        busy=0.9,
        cores=1.0,
        load=1.0,
    )
    extra, share = extra_per_death(found, 3.0)  # 120 s in place of 80
    assert extra == pytest.approx(20.0)
    assert share == pytest.approx(20 / 3 + 6 / 3)
