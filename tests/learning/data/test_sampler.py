"""The order of the data, on sizes of files that nobody reads."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain, pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.learning.data.sampler import (
    CHUNK,
    DECAY,
    PLACES,
    STRETCH,
    Files,
    Layout,
    Order,
    Origin,
    Piece,
    Stretch,
    permutation,
)

MIB = 2**20
UNLIKE = tuple(MIB * size for size in (1, 300, 40, 7, 120, 64, 500, 15, 33, 90))


def order(*sources: Files, peer: object = 0) -> Order:
    return Order(Layout(sources), seed_of("run", peer))


def on_the_line(sizes: tuple[int, ...], stretch: Stretch) -> tuple[int, int]:
    """Where a stretch begins and ends, if the files of its source lie one after the other."""
    first, last = stretch.pieces[0], stretch.pieces[-1]
    return sum(sizes[: first.file]) + first.begin, sum(sizes[: last.file]) + last.end


def covered(edges: NDArray[np.int64], spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of what lies between two edges is in the spans [number, 2], all together."""
    return np.diff([np.clip(edge - spans[:, 0], 0, spans[:, 1] - spans[:, 0]).sum() for edge in edges])


def parts(blocks: Iterable[tuple[Stretch, ...]]) -> list[tuple[int, Piece]]:
    return [(stretch.source, piece) for stretch in chain.from_iterable(blocks) for piece in stretch.pieces]


def test_20_000_sessions_of_300_reads_read_every_tenth_of_every_file_alike() -> None:
    layout, last = Layout([Files(UNLIKE)]), -(-300 // PLACES) - 1
    total, spans = sum(UNLIKE), list[tuple[int, int]]()
    for session in range(20_000):
        ours = Order(layout, seed_of("run", session))
        for first, stretch in zip(ours.block(0), ours.block(last), strict=True):
            begin, end = on_the_line(UNLIKE, first)[0], on_the_line(UNLIKE, stretch)[1]
            if end > begin:  # one after the other in a chunk
                spans.append((begin, end))
            else:  # or round to its beginning
                number = begin * layout.chunks(0) // total
                spans += [(begin, total * (number + 1) // layout.chunks(0)), (total * number // layout.chunks(0), end)]
    tenths = np.cumsum([0, *(size // 10 for size in UNLIKE for _ in range(10))])
    read = covered(tenths, np.array(spans)) / np.diff(tenths)
    assert read.mean() * total / STRETCH == pytest.approx(20_000 * 300, rel=0.05)
    assert np.abs(read / read.mean() - 1).max() < 0.2


def test_a_session_goes_on_where_the_one_before_ended_and_repeats_nothing_before_the_data_is_through() -> None:
    sizes = (5 * MIB, 30 * MIB, 123, 99 * MIB, 1, 60 * MIB + 7)
    layout = Layout([Files(sizes)])
    a_pass = layout.chunks(0) * CHUNK // STRETCH // PLACES
    first = [order(Files(sizes)).block(number) for number in range(100)]
    rest = [order(Files(sizes)).block(number) for number in range(100, a_pass)]
    read = sorted(on_the_line(sizes, stretch) for stretch in chain.from_iterable([*first, *rest]))
    assert read[0][0] == 0
    assert read[-1][1] == sum(sizes)
    assert all(one[1] == other[0] for one, other in pairwise(read)), "each byte once"
    again = chain.from_iterable(order(Files(sizes)).block(number) for number in range(a_pass, 2 * a_pass))
    assert sorted(on_the_line(sizes, stretch) for stretch in again) == read, "and so in the next pass"
    assert order(Files(sizes)).block(0) != order(Files(sizes)).block(a_pass), "in another order"


def test_a_block_is_the_same_whether_it_is_entered_or_reached_and_each_peer_has_its_own() -> None:
    sources = Files(UNLIKE), Files((3 * MIB,), weight=0.2)
    reached = [order(*sources).block(number) for number in range(300)]
    for number in (0, 1, 127, 128, 299):
        assert order(*sources).block(number) == reached[number]
    assert order(*sources, peer=1).block(0) != reached[0]
    assert len({*reached}) == 300
    assert order(*sources).seed(4) != order(*sources).seed(5)
    assert len(order(*sources).block(DECAY - 1)) == PLACES, "however far, at once"


def test_consecutive_blocks_go_on_in_the_same_parts_of_files() -> None:
    found = [order(Files(UNLIKE)).block(number) for number in range(60)]
    goes_on = [
        now.pieces[0].begin == before.pieces[-1].end or now.pieces[0].begin == 0
        for one, other in pairwise(found)
        for before, now in zip(one, other, strict=True)
    ]
    assert sum(goes_on) >= len(goes_on) - PLACES, "each place goes round its chunk at most once"
    begins = {on_the_line(UNLIKE, stretch)[0] // CHUNK for stretch in found[0]}
    assert len(begins) > PLACES / 2


@pytest.mark.parametrize("sizes", [(10 * MIB,), (900 * MIB, 5 * MIB, MIB), (40_000,)])
def test_sources_are_read_by_their_weights_in_tokens_whatever_their_sizes(sizes: tuple[int, ...]) -> None:
    weights = (0.7, 0.25, 0.05)
    sources = (
        Files(sizes, weight=weights[0], tokens=0.6),
        Files((70 * MIB,), weight=weights[1], tokens=0.3),
        Files((3 * MIB, 20), weight=weights[2], tokens=1.2),
    )
    read: Counter[int] = Counter()
    for peer in range(4):
        ours = order(*sources, peer=peer)
        for number in range(0, 500 * 128, 128):
            for source, piece in parts([ours.block(number)]):
                read[source] += piece.end - piece.begin
    tokens = np.array([read[number] * source.tokens for number, source in enumerate(sources)])
    assert tokens / tokens.sum() == pytest.approx(weights, rel=0.01)


def test_a_rare_source_is_read_by_those_too_who_read_little() -> None:
    sources = Files((100 * MIB,), weight=99.0), Files((100 * MIB,), weight=1.0)
    rare = sum(source for peer in range(2_000) for source, *_ in order(*sources, peer=peer).block(0))
    assert rare / (2_000 * PLACES) == pytest.approx(0.01, rel=0.2)


def test_a_file_that_cannot_be_entered_is_read_from_its_beginning_to_its_end_by_one_place() -> None:
    sizes = (50 * MIB, 3 * MIB, 17)
    source = Files(sizes, whole=True)
    round_ = Layout([source]).blocks
    found = [order(source).block(number) for number in range(round_)]
    for place in range(PLACES):
        read = [stretch.pieces[0] for block in found if (stretch := block[place]).pieces]
        (file,) = {piece.file for piece in read}
        assert read[0].begin == 0
        assert read[-1].end == sizes[file]
        assert all(one.end == other.begin for one, other in pairwise(read))


def test_of_very_little_data_each_place_reads_all_and_of_none_nobody_reads() -> None:
    (stretches,) = [order(Files((100, 0, 20))).block(0)]
    assert {stretch.pieces for stretch in stretches} == {(Piece(0, 0, 100, 100), Piece(2, 0, 20, 20))}
    for empty in ((), (0, 0)):
        with pytest.raises(ValueError, match="no bytes"):
            Layout([Files((5,)), Files(empty)])


def test_a_permutation_is_one_and_stays_what_it_is() -> None:
    assert sorted(permutation(1000, 5).tolist()) == list(range(1000))
    assert permutation(8, 1).tolist() != permutation(8, 2).tolist()
    firsts = Counter(int(permutation(5, seed)[0]) for seed in range(2000))
    assert min(firsts.values()) > 300
    assert permutation(8, 2026).tolist() == [7, 0, 4, 3, 2, 1, 5, 6]


@pytest.mark.parametrize(
    "wrong", [{"block": -1}, {"block": 2 * DECAY}, {"missing": 8}, {"position": -1}, {"samples": 0}]
)
def test_a_name_that_cannot_be_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no microbatch"):
        Origin(**{"block": 0, "missing": None, "position": 0, "samples": 1, **wrong})  # type: ignore[arg-type]
