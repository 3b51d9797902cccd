"""Documents in blocks: each is entered without what came before it, so that anybody can read again what somebody read.

A block is made of a few stretches of rows, from places that its seed draws: sources by their weights, files of a source
alike (so they should be of about the same size), and stretches of a file alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.sources.formats import BadRow, Unusable
from dedloc_kit.learning.data.sources.losses import HOPELESS, Losses, Unproven
from dedloc_kit.learning.data.sources.shards import Shard, Warn, count_rows, find_shards, one_line
from dedloc_kit.learning.data.sources.stream import Reader
from dedloc_kit.run.seeds import seed_of
from dedloc_kit.run.task import Source

PLACES = 8
"""Stretches in a block: where neighbours in a file are alike, those in a block are not all."""
STRETCH = 128
"""Rows in a stretch; the last one of a file may have fewer."""


class Unread(Exception):
    """More of a block could not be read than may be missing."""


@dataclass(frozen=True, eq=False)
class Block:
    """What a block holds."""

    number: int
    seed: int
    """For all that is drawn in it."""
    items: list[Any]
    """What the task can use of its rows, at most `PLACES * STRETCH`, shuffled."""
    missing: int | None
    """The place, from 0 on, that could not be read; none: all could."""


class Blocks:
    """The blocks of a weighted mixture of sources, which follow from `seed` and their numbers alone.

    One place of a block may be missing: where a line is down, or a file broken. Who reads the block again leaves it out
    too, so it has to be told, and nobody may leave out more. `warn` is told what is lost, as by `mixture`.
    Raises UserError, at once or while reading, if a source is missing or nothing of it can be used, or if it has files
    that cannot be read from the middle (`count_rows`).
    """

    def __init__(self, sources: Sequence[Source], read: Reader, *, seed: int, warn: Warn) -> None:
        self._read, self._seed, self._warn = read, seed, warn
        self._shards = [find_shards(source, warn) for source in sources]
        self._sources = tuple(sources)
        self._losses = [
            Losses(source.dataset, len(shards), warn) for source, shards in zip(sources, self._shards, strict=True)
        ]
        self._rows: dict[str, int] = {}

    def from_block(self, number: int) -> Iterator[Block]:
        """The blocks from this number on, without end. Those of which too much cannot be read are left out."""
        failed = 0
        for each in count(number):
            try:
                yield self.block(each)
                failed = 0
            except Unread as error:
                failed += 1
                if failed * 2 >= HOPELESS:  # two places of each
                    raise UserError(str(error)) from None

    def block(self, number: int) -> Block:
        """One block. Raises Unread if more than one of its places cannot be read."""
        return self._block(number, None, may_miss=True)

    def again(self, number: int, missing: int | None) -> Block:
        """One block as somebody read it who had to leave out the place `missing`. Raises Unread if another cannot be
        read."""
        return self._block(number, missing, may_miss=False)

    def _block(self, number: int, missing: int | None, may_miss: bool) -> Block:
        seed = seed_of(self._seed, "block", number)
        generator = np.random.default_rng(seed)
        weights = np.array([source.weight for source in self._sources])
        chosen = generator.choice(len(weights), size=PLACES, p=weights / weights.sum()).tolist()
        where = generator.random((PLACES, 2)).tolist()
        items: list[Any] = []
        for place, (source, (file, stretch)) in enumerate(zip(chosen, where, strict=True)):
            if place == missing:
                continue
            shard = _drawn(self._shards[source], file)
            try:
                items += self._stretch(source, shard, stretch)
            except Exception as error:  # whatever a broken file makes its decoder raise
                if isinstance(error, UserError) and not isinstance(error, Unusable):
                    raise
                self._losses[source].lose(shard, error, 0, self._sources[source].column)
                if not may_miss or missing is not None:
                    raise Unread(
                        f"too many files of {self._sources[source].dataset} cannot be read: {one_line(error)}; "
                        "check the Internet connection, or replace them"
                    ) from error
                missing = place
        order = generator.permutation(len(items))
        return Block(number, seed, [items[index] for index in order], missing)

    def _stretch(self, source: int, shard: Shard, where: float) -> list[Any]:
        """What can be used of the stretch that lies so far into a shard, from 0 to 1."""
        if shard.path not in self._rows:
            self._rows[shard.path] = count_rows(shard, self._warn)
        begin = _drawn(range(0, self._rows[shard.path], STRETCH), where) if self._rows[shard.path] else 0
        part = Shard(shard.path, shard.loader, range(begin, begin + STRETCH))
        losses, found = self._losses[source], []
        for item in self._read(self._sources[source], part, self._warn):
            if isinstance(item, BadRow):
                losses.prove(shard, item.number, item.reason)
                continue
            if isinstance(item, Unproven):
                item.bad = partial(losses.prove, shard, item.number)
            found.append(item)
        return found


def _drawn(some: Sequence[Any], where: float) -> Any:
    return some[int(where * len(some))]
