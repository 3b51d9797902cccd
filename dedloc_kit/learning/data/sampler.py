"""Which part of the data comes when: a pure function of a seed (of run and peer), and of the sizes of files.

Nothing is read here. The files of a source are one line of bytes, cut into *chunks* of equal size, a chunk into
*stretches*. A pass over a source takes all its chunks in an order of its own, and each from a drawn stretch on, going
round. A *block* of data has a few *places*, each with a chunk open: the stretch of place and block is the next one of
that chunk, so that consecutive blocks read the same few parts of files to their ends. When a round of blocks is over,
each place goes over to another source, by the sources' weights, and to other chunks.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.config.seeds import seed_of

PLACES = 8
"""Stretches in a block: where neighbours in a file are alike, those in a block are not all."""
STRETCH = 2**17
"""Bytes of files in a stretch, at least, unless a source has fewer; at most about twice as many."""
CHUNK = 2**24
"""Bytes of files that are read one after the other, about. What is fetched at once (a row group of a Parquet file,
often of 1,000 rows and some megabytes) should be a small part of that, for at its ends more is fetched than read."""
_IN_A_CHUNK, _MAX_CHUNK = CHUNK // STRETCH, 4 * CHUNK
"""Stretches in a chunk at most, whatever their size, and bytes."""
DECAY = 2**32
"""Blocks from this number on are of `data.cooldown`. Nobody reads so many of either mixture."""
_MAX_POSITION = 2**32
_ONE = 2**24
"""A share of 1, in whole numbers, which all machines multiply alike."""
_LONGEST = 2**20
"""Blocks of a round, at most."""


@dataclass(frozen=True)
class Origin:
    """The name of a microbatch among those of a peer; raises ValueError for one that cannot be."""

    block: int
    """Its number, from 0 or from `DECAY` on."""
    missing: int | None
    """The place of the block that could not be read, for all microbatches of a block the same."""
    position: int
    """Of its first sample among the block's, from 0 on."""
    samples: int

    def __post_init__(self) -> None:
        missing_fits = self.missing is None or 0 <= self.missing < PLACES
        in_range = 0 <= self.block < 2 * DECAY and 0 <= self.position < _MAX_POSITION
        if not in_range or not missing_fits or self.samples < 1:
            raise ValueError(f"no microbatch: {self}")


class Position(NamedTuple):
    """A position in a peer's data."""

    block: int = 0
    sample: int = 0
    """Of the block; those before it have been used."""


class Piece(NamedTuple):
    """A fraction of a file: from `begin / size` to `end / size`."""

    file: int
    begin: int
    end: int
    size: int


class Stretch(NamedTuple):
    """Consecutive bytes of one source, read at one place of a block."""

    source: int
    pieces: tuple[Piece, ...]
    """Of one file or, at the end of one, of several."""


@dataclass(frozen=True)
class Files:
    """The files of a source and their sizes.

    :param sizes: of each in bytes
    :param weight: its share of what is read, in tokens, relative to other sources
    :param whole: whether one of them can be read from its beginning only; then none is cut
    :param tokens: of a byte, on average. Where that is not known, it is 1 for all sources, and weights are shares of
        bytes.
    """

    sizes: tuple[int, ...]
    weight: float = 1.0
    whole: bool = False
    tokens: float = 1.0

    @cached_property
    def ends(self) -> list[int]:
        return list(accumulate(self.sizes))

    def between(self, begin: int, end: int) -> tuple[Piece, ...]:
        """The pieces of files between two byte offsets of the concatenated source."""
        pieces, file = [], bisect_right(self.ends, begin)
        while begin < end:
            size = self.sizes[file]
            first = self.ends[file] - size
            until = min(end, self.ends[file])
            if begin < until:
                pieces.append(Piece(file, begin - first, until - first, size))
            begin, file = until, file + 1
        return tuple(pieces)


def chunk_size(stretch: int) -> int:
    """Bytes of a chunk, at most, for stretches of so many; a power of two times as many."""
    return stretch * max(1, min(_IN_A_CHUNK, _MAX_CHUNK // stretch))


class _Source:
    """A source cut into chunks and stretches."""

    def __init__(self, files: Files, stretch: int) -> None:
        total = files.ends[-1] if files.ends else 0
        self.files, self.total = files, total
        self._whole = [number for number, size in enumerate(files.sizes) if size]
        if files.whole:
            self.count = len(self._whole)
            most = -(-max(files.sizes, default=0) // stretch)
            self.stretches = min(1 << max(most - 1, 0).bit_length(), _LONGEST)
        else:
            most = min(chunk_size(stretch) // stretch, total // (PLACES * stretch))
            self.stretches = 1 << max(most.bit_length() - 1, 0)
            self.count = max(1, total // (self.stretches * stretch))
            if self.count > PLACES:  # then a pass ends with a round, where there is no other source
                self.count -= self.count % PLACES

    @property
    def tokens(self) -> float:
        """Of a stretch, on average."""
        return self.files.tokens * self.total / (self.count * self.stretches)

    def stretch(self, chunk: int, number: int) -> tuple[Piece, ...]:
        if self.files.whole:
            file, parts = self._whole[chunk], self.stretches
            first, size = self.files.ends[file] - self.files.sizes[file], self.files.sizes[file]
        else:
            number, parts = chunk * self.stretches + number, self.count * self.stretches
            first, size = 0, self.total
        return self.files.between(first + size * number // parts, first + size * (number + 1) // parts)


class Layout:
    """All sources cut into chunks and stretches, the same for all peers. Raises ValueError if one of them has no bytes.

    :param stretch: bytes, as `STRETCH`
    """

    def __init__(self, sources: Sequence[Files], stretch: int = STRETCH) -> None:
        self.sources = [_Source(files, stretch) for files in sources]
        if not all(source.total for source in self.sources):
            raise ValueError("a source has no bytes")
        self.blocks = max([chunk_size(stretch) // stretch, *(source.stretches for source in self.sources)])
        """Of a round."""
        shares = [source.files.weight / source.tokens for source in self.sources]
        self.shares = [
            min(_ONE, max(1, round(_ONE * share / sum(shares[number:])))) for number, share in enumerate(shares)
        ]
        """Of each among those from it on, in chunks."""

    def chunks(self, source: int) -> int:
        """How many a source has."""
        return self.sources[source].count

    def stretches(self, source: int) -> int:
        """How many a source has."""
        return self.sources[source].count * self.sources[source].stretches


class Order:
    """The order in which one peer reads a layout.

    :param seed: of the run and the peer
    """

    def __init__(self, layout: Layout, seed: int) -> None:
        self._layout, self._seed = layout, seed
        self._phases = [seed_of(seed, "phase", number) % _ONE for number in range(len(layout.sources))]
        self._passes: dict[int, tuple[int, list[int]]] = {}

    def block(self, number: int) -> tuple[Stretch, ...]:
        """What each place of a block holds; the first block is 0."""
        blocks = self._layout.blocks
        turn, at = divmod(number, blocks)
        counts = [self._counts(PLACES * turn + place) for place in range(PLACES + 1)]
        found = []
        for place in range(PLACES):
            before, after = counts[place], counts[place + 1]
            source = next(each for each in range(len(before)) if after[each] > before[each])
            cut = self._layout.sources[source]
            stretches = cut.stretches
            begun, open_ = counts[0][source], counts[-1][source] - counts[0][source]
            chunk_at, stretch = divmod(at, stretches)
            ordinal = begun * (blocks // stretches) + chunk_at * open_ + before[source] - begun
            if not cut.files.whole:
                stretch = (stretch + seed_of(self._seed, "begin", source, ordinal)) % stretches
            found.append(Stretch(source, cut.stretch(self._chunk(source, ordinal), stretch)))
        return tuple(found)

    def seed(self, number: int) -> int:
        """The seed of all random choices in a block."""
        return seed_of(self._seed, "block", number)

    def _counts(self, chunks: int) -> list[int]:
        """How many of the first `chunks` chunks belong to each source, rounded to its share."""
        counts = []
        for share, phase in zip(self._layout.shares[:-1], self._phases[:-1], strict=True):
            counts.append((chunks * share + phase) // _ONE)
            chunks -= counts[-1]
        return [*counts, chunks]

    def _chunk(self, source: int, ordinal: int) -> int:
        """The chunk at an ordinal of a source's passes, each pass in its own permutation."""
        number, index = divmod(ordinal, self._layout.sources[source].count)
        if self._passes.get(source, (-1,))[0] != number:
            seed = seed_of(self._seed, "pass", source, number)
            self._passes[source] = number, permutation(self._layout.sources[source].count, seed).tolist()
        return self._passes[source][1][index]


def permutation(count: int, seed: int) -> NDArray[Any]:
    """A random permutation of `range(count)`, the same with all versions of numpy."""
    return np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
