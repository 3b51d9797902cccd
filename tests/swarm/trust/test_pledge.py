"""What a pledge says of parts and work."""

import pytest

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.allreduce.encoding.codec import WAYS
from dedloc_kit.swarm.allreduce.encoding.compression import _Blockwise
from dedloc_kit.swarm.trust.pledge import BLOCK, Window, Work, window


def test_no_codec_encodes_values_of_two_blocks_together() -> None:
    blocks = [way.block for way in WAYS if isinstance(way, _Blockwise)]  # sparse ones are not for checked runs
    assert blocks
    assert all(BLOCK % block == 0 for block in blocks)


@pytest.mark.parametrize(
    ("begin", "end", "found"),
    [
        (0, CHUNK, Window(0, 0, CHUNK)),
        (5, 900, Window(0, 5, 900)),
        (CHUNK + 7, 2 * CHUNK, Window(1, CHUNK + 7, 2 * CHUNK)),
        (CHUNK - 1000, CHUNK + 2000, Window(1, CHUNK + 24, CHUNK + 2000)),
        (CHUNK - 2000, CHUNK + 1000, Window(0, CHUNK - 2000, CHUNK - 208)),
        (CHUNK - 512, CHUNK + 100, Window(0, CHUNK - 512, CHUNK)),
    ],
)
def test_the_larger_share_of_a_part_is_compared_in_whole_blocks(begin: int, end: int, found: Window) -> None:
    assert window(begin, end) == found


def test_of_a_part_of_a_few_values_in_two_pieces_none_is_compared() -> None:
    found = window(CHUNK - 100, CHUNK + 100)
    assert found.begin == found.end


def test_lines_of_work_are_read_as_they_were_written() -> None:
    work = [Work(3, None, 0, 8, 1), Work(3, 0, 8, 2, 1), Work(2**40, 5, 2**31, 1, 7)]
    assert Work.read_all(b"".join(line.content for line in work)) == work
    for wrong in (work[0].content[1:], work[0].content + b"x", Work(3, None, 0, 0, 1).content):
        with pytest.raises(ValueError, match="of work"):
            Work.read_all(wrong)
