"""How a swarm is divided into rows: the arithmetic."""

from collections import Counter

import pytest

from dedloc_kit.swarm.directory.rows import Division
from dedloc_kit.swarm.network.kinds import AHEAD, CELLS, COPIES, EPOCH, cell_of, cells_of

PEERS = [f"peer-{number}" for number in range(1000)]


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
