"""How a swarm is divided into rows: the arithmetic."""

from collections import Counter

import pytest

from dedloc_kit.records.steps import Receipt
from dedloc_kit.swarm.directory.rows import MAX_GROUP, STEPS_LOOKED_AT, Division, divided, rows_for
from dedloc_kit.swarm.network.kinds import AHEAD, CELLS, COPIES, EPOCH, cell_of, cells_of

PEERS = [f"peer-{number}" for number in range(1000)]


def receipts(*peers: int) -> list[Receipt]:
    return [Receipt(step=1, round="ab", time=0.0, seconds=0.0, signed=(b"",) * count) for count in peers]


def test_few_peers_are_one_group_and_many_are_divided_into_rows_of_32_to_64() -> None:
    assert [rows_for(peers) for peers in (0, 2, MAX_GROUP)] == [1, 1, 1]
    assert [rows_for(peers) for peers in (65, 128, 129, 256, 512, 1024, 10**6)] == [2, 2, 4, 4, 8, 16, CELLS]
    for peers in range(MAX_GROUP + 1, 2049):
        assert 32 < peers / rows_for(peers) <= 64


def test_one_round_that_lost_many_moves_nobody_and_some_in_a_row_do() -> None:
    assert divided(9, receipts(500, 40)).rows == rows_for(500)
    assert divided(9, receipts(500, *[40] * STEPS_LOOKED_AT)).rows == 1
    assert divided(9, receipts(40, 40, 500)).rows == rows_for(500)
    assert divided(0, []).rows == 1


def test_a_row_is_whole_cells_so_that_a_record_stays_where_it_is_when_their_number_changes() -> None:
    few, many = Division(4, step=7), Division(16, step=7)
    for peer in PEERS[:50]:
        assert many.row_of(peer) % 4 == few.row_of(peer)
        assert set(many.cells(peer)) < set(few.cells(peer))
        assert set(cells_of(peer, 7)) <= set(many.cells(peer))
    assert Division(1, step=7).cells("a") == ()


def test_all_copies_are_asked_for_about_as_often() -> None:
    copies = Counter(Division(8, step=7).copy_for(peer) for peer in PEERS)
    assert copies.keys() == set(range(COPIES))
    assert max(copies.values()) < 1.5 * 1000 / COPIES


def test_peers_are_spread_evenly_and_meet_others_in_the_next_epoch() -> None:
    before, after = Division(16, step=EPOCH - 1), Division(16, step=EPOCH)
    for division in (before, after):
        sizes = Counter(map(division.row_of, PEERS))
        assert len(sizes) == 16
        assert max(sizes.values()) < 2 * 1000 / 16
    together = [peer for peer in PEERS if before.row_of(peer) == before.row_of("a")]
    assert len({after.row_of(peer) for peer in together}) > 8


@pytest.mark.parametrize(("step", "cells"), [(EPOCH - AHEAD - 1, 1), (EPOCH - AHEAD, 2), (EPOCH - 1, 2), (EPOCH, 1)])
def test_shortly_before_an_epoch_ends_a_peer_is_seen_in_its_next_cell_too(step: int, cells: int) -> None:
    peer = next(peer for peer in PEERS if cell_of(peer, 0) % 4 != cell_of(peer, EPOCH) % 4)
    assert len(cells_of(peer, step)) == cells
    assert cell_of(peer, step) in cells_of(peer, step)
    assert len(Division(4, step).cells(peer)) == cells * CELLS // 4
