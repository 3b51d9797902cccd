"""Which pictures with captions a run can use, and why others are left out."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.pictures.images import Pixels, each_decoded
from dedloc_kit.learning.data.sources.data_issues import LazyRow
from dedloc_kit.learning.data.sources.shards import Shard
from dedloc_kit.learning.data.sources.stream import in_order
from dedloc_kit.learning.models.picture_model.captioned import CaptionedFile, PictureSource, Wanted, captioned
from tests.pictures import draw, encoded

GOOD = encoded(draw(0))
SAME = Wanted(held_out=1e-12)
"""Holds nothing out."""


def write(folder: Path, **columns: list[Any]) -> PictureSource:
    """A dataset with these columns, beside good pictures and captions."""
    number = len(next(iter(columns.values())))
    whole = {"image": [GOOD] * number, "caption": [f"picture {each}" for each in range(number)]} | columns
    folder.mkdir(exist_ok=True)
    parquet.write_table(pyarrow.table(whole), folder / "train-00000-of-00001.parquet")
    return PictureSource(dataset=str(folder), **{key: key for key in columns if key == "unsafe"})


def read(
    source: PictureSource, wanted: Wanted = SAME, held_out: bool = False
) -> tuple[list[tuple[Pixels, CaptionedFile]], Counter[str], list[str]]:
    """What can be used, decoded; what is left out; and what is told."""
    left_out, told = Counter[str](), list[str]()
    files = in_order(source.source, captioned([source], wanted, held_out, left_out), warn=told.append)
    return list(each_decoded(files, 32, on_white=True)), left_out, told


def captions(source: PictureSource, wanted: Wanted = SAME, held_out: bool = False) -> list[str]:
    return [file.caption for _, file in read(source, wanted, held_out)[0]]


def test_equal_words_are_on_one_side_however_they_are_written(tmp_path: Path) -> None:
    words = [f"a {kind} of {each}" for each in range(200) for kind in ("tree", "house")]
    written = [text for one in words for text in (one, one.upper(), f"  {one.replace(' ', '  ')} ")]
    source, wanted = write(tmp_path, caption=written), Wanted(held_out=0.2)
    kept, held_out = captions(source, wanted), captions(source, wanted, held_out=True)
    assert len(kept) + len(held_out) == len(written)
    assert 0.15 < len(held_out) / len(written) < 0.25
    assert not {text.lower() for text in kept} & {text.lower() for text in held_out}
    # A larger share holds out the same ones and more.
    assert set(held_out) < set(captions(source, Wanted(held_out=0.4), held_out=True))


def test_what_nobody_can_learn_from_is_left_out_and_counted_by_its_reason(tmp_path: Path) -> None:
    image = [
        GOOD,
        *(encoded(draw(1).resize(size)) for size in [(1, 1), (7, 100), (100, 49), (49, 100), (100, 50)]),
        *[GOOD] * 4,
    ]
    caption = [*[f"good {each}" for each in range(6)], "", None, "ab", "  a  b  "]
    found, left_out, told = read(write(tmp_path, image=image, caption=caption))
    assert [file.caption for _, file in found] == ["good 0", "good 5", "a b"]
    assert left_out == {
        "pictures of under 8 pixels a side": 2,
        "pictures more than 2 times as long as wide": 2,
        "captions of under 3 characters": 3,
    }
    assert told == []


@pytest.mark.parametrize(
    ("marks", "kept"),
    [
        ([True, False, None], [1]),
        ([0.49, 0.5, float("nan")], [0]),
        (["UNLIKELY", "UNSURE", "NSFW"], [0]),
        (["safe", "", "no"], [0, 2]),
    ],
)
def test_a_column_marks_what_nobody_wants_to_see(marks: list[Any], kept: list[int], tmp_path: Path) -> None:
    source = write(tmp_path, unsafe=marks)
    found, left_out, _ = read(source)
    assert [file.caption for _, file in found] == [f"picture {each}" for each in kept]
    assert left_out == {"marked in column 'unsafe'": 3 - len(kept)}


def test_pictures_of_all_kinds_are_bounded_and_those_that_are_none_are_told(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (40, 40), (200, 0, 0, 0))
    moving = encoded(Image.new("P", (40, 40), 1), "GIF", save_all=True, append_images=[Image.new("P", (40, 40), 2)])
    huge = encoded(Image.new("1", (10_000, 10_000)))  # a hundred megapixels in a few kilobytes
    long = "word " * 20_000
    found, left_out, told = read(
        write(
            tmp_path,
            image=[encoded(clear), moving, huge, GOOD[:-200], b"no picture", None, GOOD],
            caption=["clear", "moving", "huge", "truncated", "nothing", "missing", long],
        )
    )
    assert [file.caption for _, file in found] == ["clear", "moving", long.strip()]
    assert np.array_equal(found[0][0], np.full((32, 32, 3), 255))  # what is transparent is white
    assert left_out == {}
    assert "10000 x 10000 pixels are too many" in told[0]
    assert len(huge) < 100_000


def test_columns_that_hold_something_else_are_refused_with_the_key(tmp_path: Path) -> None:
    source = write(tmp_path, image=["words"] * 3)
    with pytest.raises(UserError, match="holds str, not pictures, in column 'image'; set the source's column"):
        read(source)
    with pytest.raises(UserError, match="holds int, not text, in column 'caption'; set the source's caption"):
        read(write(tmp_path, caption=[1, 2, 3]))
    with pytest.raises(UserError, match=r"has no column 'picture'; set the column to one of: caption, image"):
        read(write(tmp_path, caption=["a", "b"]).model_copy(update={"column": "picture"}))


def test_a_picture_has_the_number_of_its_row_where_a_file_is_entered_in_the_middle(tmp_path: Path) -> None:
    source = write(tmp_path, caption=[f"picture {each}" for each in range(5)])
    part = Shard(str(tmp_path / "train-00000-of-00001.parquet"), "parquet", (2, 5, 5))
    files = captioned([source], SAME, False, Counter())(source.source, part, pytest.fail)
    assert [file.number for file in files if isinstance(file, LazyRow)] == [3, 4, 5]
