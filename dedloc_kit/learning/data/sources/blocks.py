"""Reads the documents of a block without what comes before it, so that an auditor can read any block again.

Which parts of which files a block holds, `data/sampler.py` says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from dedloc_kit.config.seeds import seed_of
from dedloc_kit.config.task import Source
from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sampler import STRETCH, Files, Layout, Order, Piece, permutation
from dedloc_kit.learning.data.sources.data_issues import HOPELESS, LazyRow, Losses
from dedloc_kit.learning.data.sources.formats import BadRow, Unusable
from dedloc_kit.learning.data.sources.open_files import OpenFiles
from dedloc_kit.learning.data.sources.patience import Warn, is_transient, one_line
from dedloc_kit.learning.data.sources.reading import metadata_of, sizes_of
from dedloc_kit.learning.data.sources.shards import Reader, Shard, find_shards

_ALL_BAD = 100
"""So many rows one after the other, all bad, are no accident: the file is lost as one."""


class Unread(Exception):
    """More of a block could not be read than may be missing."""


@dataclass(frozen=True, eq=False)
class Block:
    """What a block holds."""

    number: int
    seed: int
    """For all that is drawn in it."""
    items: list[Any]
    """What the task can use of its rows, shuffled."""
    missing: int | None
    """The place, from 0 on, that could not be read; none: all could. If several may be missing, the first."""


class Blocks:
    """The blocks of a weighted mixture of sources, which follow from `seed` and their numbers alone.

    One place of a block may be missing: where a line is down, or a file broken. Who reads the block again leaves it out
    too, so it has to be told, and nobody may leave out more. Where nobody reads again, `checked` is False: any number
    of places may be missing then, and files are read too that cannot be entered in the middle.
    `warn` is told what is lost, as a `Loss`. Weights are shares of tokens if all sources hold tokens, else of bytes.
    Raises UserError, at once or while reading, if a source is missing or nothing of it can be used.

    :param stretch: as for `Layout`
    """

    def __init__(
        self,
        sources: Sequence[Source],
        read: Reader,
        *,
        seed: int,
        warn: Warn,
        checked: bool = True,
        stretch: int = STRETCH,
    ) -> None:
        self._read, self._warn, self._checked = read, warn, checked
        self._files = OpenFiles()
        self._sources = tuple(sources)
        self._shards = [self._found(source) for source in sources]
        self._losses = [
            Losses(source.dataset, len(shards), warn) for source, shards in zip(sources, self._shards, strict=True)
        ]
        self._tried, self._found_in = [0] * len(sources), [0] * len(sources)
        """Of each source, stretches that were read, or could not be, and what was found in them."""
        self._lost: dict[str, tuple[int, Exception]] = {}
        """Files that could not be read, and until which block that is remembered."""
        self._layout = Layout(self._listed(), stretch)
        self._order = Order(self._layout, seed)

    def _found(self, source: Source) -> list[Shard]:
        shards = [replace(shard, files=self._files) for shard in find_shards(source, self._warn)]
        for shard in shards if self._checked else ():
            if not shard.seekable:
                raise UserError(
                    f"{shard.path} cannot be read from the middle, as a run that is checked does; convert it to "
                    "Parquet, or write its tokens with: dedloc prepare tokens RUN.toml"
                )
        return shards

    def _listed(self) -> list[Files]:
        listed, by_tokens = [], len(self._sources) > 1 and all(source.tokenized for source in self._sources)
        for source, shards in zip(self._sources, self._shards, strict=True):
            sizes = sizes_of(shards, self._warn)
            if not sum(sizes):
                raise UserError(f"the files of {source.dataset} are empty; choose other data")
            first = next(number for number, size in enumerate(sizes) if size)
            tokens = self._values(shards[first]) / sizes[first] if by_tokens else 1.0
            listed.append(Files(sizes, source.weight, not all(shard.seekable for shard in shards), tokens))
        return listed

    def _values(self, shard: Shard) -> int:
        """The tokens in a Parquet file of them, as it says itself. All peers need the same."""
        try:
            metadata = metadata_of(shard, self._warn)
        except Exception as error:  # whatever a broken file makes its decoder raise
            raise UserError(
                f"{shard.path} cannot be read ({one_line(error)}), and tells how many tokens its source has; check "
                "the Internet connection, or replace the file"
            ) from error
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        values = sum(max(g.column(n).num_values for n in range(g.num_columns)) for g in groups)
        return max(1, int(values))

    @property
    def example(self) -> str:
        """A row that cannot be used, and why; empty if there was none."""
        return next((losses.example for losses in self._losses if losses.example), "")

    def from_block(self, number: int) -> Iterator[Block]:
        """The blocks from this number on, without end; but not those that are empty or of which too much cannot be
        read."""
        failed = 0
        try:
            for each in count(number):
                try:
                    block = self.block(each)
                    failed = 0
                    if block.items:
                        yield block
                except Unread as error:
                    failed += 1
                    if failed * 2 >= HOPELESS:  # two places of each
                        raise UserError(str(error)) from None
        finally:
            self._files.close()

    def block(self, number: int) -> Block:
        """One block. Raises Unread if more than one of its places cannot be read, and it is checked."""
        return self._block(number, None, may_miss=True)

    def again(self, number: int, missing: int | None) -> Block:
        """One block as somebody read it who had to leave out the place `missing`. Raises Unread if another cannot be
        read."""
        return self._block(number, missing, may_miss=False)

    def _block(self, number: int, missing: int | None, may_miss: bool) -> Block:
        items: list[Any] = []
        for place, (source, pieces) in enumerate(self._order.block(number)):
            if place == missing:
                continue
            found, error = self._stretch(number if may_miss else None, source, pieces)
            if error is None:
                items += found
                continue
            if self._checked and (not may_miss or missing is not None):
                raise Unread(
                    f"too many files of {self._sources[source].dataset} cannot be read: {one_line(error)}; "
                    "check the Internet connection, or replace them"
                ) from error
            if not self._checked:
                items += found
            missing = place if missing is None else missing
        seed = self._order.seed(number)
        order = permutation(len(items), seed_of(seed, "documents")).tolist()
        return Block(number, seed, [items[index] for index in order], missing)

    def _stretch(self, number: int | None, source: int, pieces: Sequence[Piece]) -> tuple[list[Any], Exception | None]:
        """What can be used of a stretch, and what was in the way of its rest.

        :param number: of the block, if files are not asked for again that were down just before
        """
        found, broken = list[Any](), None
        for piece in pieces:
            shard = self._shards[source][piece.file]
            try:
                if number is not None:
                    self._raise_if_lost(shard, piece, number)
                self._piece(source, shard, piece, found)
            except Exception as error:  # whatever a broken file makes its decoder raise
                if isinstance(error, UserError) and not isinstance(error, Unusable):
                    raise
                if number is not None:
                    self._lost[shard.path] = number + self._layout.blocks, error
                self._losses[source].lose(shard, error, len(found), self._sources[source].column)
                broken = error
                if not found and not self._found_in[source] and len(self._losses[source].unreadable) >= HOPELESS:
                    raise self._losses[source].nothing(self._sources[source].column) from error
        self._tried[source] += 1
        self._found_in[source] += len(found)
        if not self._found_in[source] and self._tried[source] >= self._layout.stretches(source):
            raise self._losses[source].nothing(self._sources[source].column) from broken
        return found, broken

    def _raise_if_lost(self, shard: Shard, piece: Piece, number: int) -> None:
        """Whether a file is asked for again: not while no line leads to it, and not for what follows the place where
        it breaks off, if it can be read from its beginning only."""
        until, error = self._lost.get(shard.path, (0, None))
        if error is None or number >= until:
            return
        if is_transient(error) or (piece.begin and not shard.seekable):
            raise error

    def _piece(self, source: int, shard: Shard, piece: Piece, found: list[Any]) -> None:
        """Add what can be used of a part of a file."""
        part = replace(shard, part=(piece.begin, piece.end, piece.size))
        losses, bad, usable = self._losses[source], list[BadRow](), 0
        for item in self._read(self._sources[source], part, self._warn):
            if isinstance(item, BadRow):
                bad.append(item)
                if len(bad) == _ALL_BAD and not usable:
                    break
                continue
            usable += 1
            if isinstance(item, LazyRow):
                item.bad = partial(losses.prove, shard, item.number)
            found.append(item)
        if bad and not usable and (len(bad) >= _ALL_BAD or piece.end - piece.begin == piece.size):
            raise Unusable(f"{shard.path} has no usable row among {len(bad)}: row {bad[0].number} {bad[0].reason}")
        for row in bad:
            losses.prove(shard, row.number, row.reason, row.kind)
