"""Pictures with captions, and which of them a run can use: what is left out is counted by its reason."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from dedloc_kit.config.section import Section, Unit
from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.learning.data.pictures.images import Encoded, file_of, no_picture, sides
from dedloc_kit.learning.data.sources.formats import BadRow
from dedloc_kit.learning.data.sources.patience import Warn
from dedloc_kit.learning.data.sources.reading import read_rows
from dedloc_kit.learning.data.sources.shards import Reader, Shard

MIN_SIDE = 8
"""Pixels; a smaller picture shows nothing that could be learned."""
_SAFE = {"safe", "unlikely", "false", "no", "0"}
"""Words of a column that marks what is unsafe, which do not mean that it is; LAION's is UNLIKELY."""


class PictureSource(Section):
    """A dataset of pictures with captions."""

    dataset: str = Field(min_length=1)
    """A dataset on the Hub (`OWNER/NAME`), or a local folder or file."""
    subset: str | None = None
    """The subset (configuration) of the dataset."""
    revision: str | None = None
    """A commit, branch or tag of the dataset on the Hub."""
    split: str = "train"
    """The split of the dataset."""
    column: str = "image"
    """The column with the picture."""
    caption: str = "caption"
    """The column with the caption."""
    unsafe: str | None = None
    """The column that marks unsafe pictures, which are left out: true, at least 0.5, an empty value, or any word but
    `unlikely`, `safe`, `no` and `false`."""

    @property
    def source(self) -> Source:
        return Source(
            dataset=self.dataset, subset=self.subset, revision=self.revision, split=self.split, column=self.column
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.column, self.caption, self.unsafe)))


class Wanted(Section):
    """Which pictures are used, and which of them are held out."""

    held_out: Annotated[float, Field(gt=0, le=0.5)] = 0.1
    """The share of captions that are held out, with all their pictures."""
    min_characters: Annotated[int, Field(ge=1), Unit("characters")] = 3
    """The shortest caption; shorter ones are left out."""
    max_aspect: Annotated[float, Field(ge=1)] = 2.0
    """The greatest aspect ratio; narrower pictures are left out, as only the middle square is used."""

    def holds_out(self, caption: str) -> bool:
        """Whether pictures with these words are kept from training."""
        return seed_of("held out", " ".join(caption.casefold().split())) < self.held_out * 2**63


@dataclass(eq=False)
class CaptionedFile(Encoded):
    """A picture as a file, with the words for it."""

    caption: str


def captioned(sources: Sequence[PictureSource], wanted: Wanted, held_out: bool, left_out: Counter[str]) -> Reader:
    """What reads those pictures of any of the sources that are held out, or that are not, and can be used.

    :param left_out: counts what is left out, by the reason
    """
    of_source = {where.source: where for where in sources}

    def read(source: Source, shard: Shard, warn: Warn) -> Iterator[CaptionedFile | BadRow]:
        where = of_source[source]
        for number, row in read_rows(shard, where.columns, warn):
            if isinstance(row, BadRow):
                yield row
                continue
            caption, data = row[where.caption], file_of(row[where.column])
            if not isinstance(caption, str | None):
                kind = type(caption).__name__
                yield BadRow(number, f"holds {kind}, not text, in column '{where.caption}'; set the source's caption")
            elif data is None:
                yield no_picture(number, row[where.column], where.column)
            elif wanted.holds_out(caption or "") is held_out:
                words = " ".join((caption or "").split())
                if reason := _unfit(where, wanted, row, words, data):
                    left_out[reason] += 1
                    continue
                yield CaptionedFile(number, data, None, words)

    return read


def _unfit(where: PictureSource, wanted: Wanted, row: dict[str, Any], words: str, data: bytes) -> str:
    """Why a picture is left out; empty if it is not."""
    if len(words) < wanted.min_characters:
        return f"captions of under {wanted.min_characters} characters"
    if where.unsafe and _is_unsafe(row[where.unsafe]):
        return f"marked in column '{where.unsafe}'"
    found = sides(data)
    if found is None:
        return ""  # whoever decodes it says what is wrong
    if min(found) < MIN_SIDE:
        return f"pictures of under {MIN_SIDE} pixels a side"
    if max(found) > wanted.max_aspect * min(found):
        return f"pictures more than {wanted.max_aspect:g} times as long as wide"
    return ""


def _is_unsafe(mark: Any) -> bool:
    if isinstance(mark, int | float):
        return not mark < 0.5  # what is not a number is no good news
    return not (isinstance(mark, str) and mark.strip().lower() in _SAFE)
