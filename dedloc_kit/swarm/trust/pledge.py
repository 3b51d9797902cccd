"""What a member commits to with its contribution, before it sends anything: so it can be asked afterwards.

Three roots (`commitments`): over the parts that it sends, over what compression has lost before and after, and over its
work, a line for each microbatch. All of it is made before the introduction is signed, so nothing can be fitted to what
the others do, or to the question.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from dedloc_kit.config.trust import TrustConfig
from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.records.record import Base64, Count, Digest
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.trust.commitments import MAX_CONTENTS, Commitment, Hash, Opening

NOTHING = bytes(32)
"""The root of no contents."""


class Pledged(Contribution):
    """A contribution whose author can be checked; what members are introduced with where checks are on.

    Who brings no samples sends nothing, and all its roots are `NOTHING`.
    """

    wire: ClassVar[str] = "pledged-contribution"

    group: Digest
    """The round that it is for: it cannot be brought to another one."""
    parts: Hash
    """Over what is sent of each chunk of the round, in its order (`part_content`)."""
    before: Hash
    """Over what compression had lost when the round began, in pieces of `CHUNK` values, the last one of fewer."""
    after: Hash
    """The same for the next round, if this one counts."""
    work: Hash
    """Over its microbatches (`Work.content`), in the order in which they were computed."""
    microbatches: Annotated[int, Field(ge=0, le=MAX_CONTENTS)]
    confirmed: Count = 0
    """What the organizer has confirmed of its author, in samples."""
    standing: Base64 = ""
    """Where it says so; `standing.read`."""

    def fits(self, group: str) -> bool:
        """Is it for this round, and made of microbatches if it brings any samples?"""
        return self.group == group and bool(self.samples) == bool(self.microbatches)

    def sends(self, number: int, chunks: Sequence[tuple[int, int]], encoded: bytes, path: tuple[bytes, ...]) -> bool:
        """Did its author commit to send this of a chunk? These are those of the round; raises ValueError for a path
        that cannot be."""
        if number >= len(chunks):
            return False
        opening = Opening.parse({"number": number, "count": len(chunks), "path": path})
        return opening.shows(part_content(*chunks[number], encoded), self.parts)


@dataclass(frozen=True)
class Sealed:
    """What a member sends of each chunk of a round, encoded, and its commitment to that."""

    parts: tuple[bytes, ...]
    commitment: Commitment


def nothing_pledged(mine: Contribution, group: str) -> Pledged:
    """Of who sends nothing."""
    roots = dict.fromkeys(("parts", "before", "after", "work"), NOTHING)
    return Pledged.parse({**mine.model_dump(), **roots, "group": group, "microbatches": 0})


def contribution_kind(trust: TrustConfig) -> type[Contribution]:
    """What members of a run's rounds are introduced with."""
    return Pledged if trust.checks == "on" else Contribution


_PART, _WORK = struct.Struct(">QQ"), struct.Struct(">QbQIQ")
LINE_BYTES = _WORK.size
"""Of a line of work."""


def part_content(begin: int, end: int, encoded: bytes) -> bytes:
    """What is committed to of the part of these values: `encoded` is the message that reducers get."""
    return _PART.pack(begin, end) + encoded


class Work(NamedTuple):
    """A microbatch, by its name among those of its author in this run, and the parameters that it was computed with."""

    block: int
    missing: int | None
    """As in `learning.data.sampler.Origin`."""
    position: int
    samples: int
    step: int
    """The global step whose parameters these were."""

    @property
    def content(self) -> bytes:
        return _WORK.pack(self.block, -1 if self.missing is None else self.missing, *self[2:])

    @classmethod
    def read(cls, content: bytes) -> "Work":
        """Raises ValueError if it is none."""
        try:
            block, missing, position, samples, step = _WORK.unpack(content)
        except struct.error:
            raise ValueError("no line of work") from None
        if missing < -1 or not samples:
            raise ValueError("no line of work")
        return cls(block, None if missing == -1 else missing, position, samples, step)

    @classmethod
    def read_all(cls, contents: bytes) -> list["Work"]:
        """Lines, one after the other; raises ValueError."""
        return [cls.read(line) for line in lines(contents)]


def lines(contents: bytes) -> list[bytes]:
    """Those of some work, one after the other, each for itself; raises ValueError."""
    size = _WORK.size
    if len(contents) % size or len(contents) > MAX_CONTENTS * size:
        raise ValueError("no lines of work")
    return [contents[at : at + size] for at in range(0, len(contents), size)]


def overlap(work: Iterable[Work]) -> bool:
    """Is there a sample of a session that is in two of them?"""
    blocks = defaultdict[int, list[tuple[int, int]]](list)
    for each in work:
        blocks[each.block].append((each.position, each.position + each.samples))
    return any(before[1] > after[0] for spans in blocks.values() for before, after in pairwise(sorted(spans)))


class Window(NamedTuple):
    """The values of a part that are compared: those within one piece of the residuals that were encoded together."""

    piece: int
    begin: int
    end: int


BLOCK = 256
"""Values of a part, counted from its begin on, that no codec encodes together with others (its blocks divide this)."""


def window(begin: int, end: int) -> Window:
    """Of the part of these values (at most `CHUNK`), which lies in two pieces at most: the larger share.

    A block that lies in both pieces is left out, for one piece does not tell how it was encoded. Of a part that is no
    longer than such a block nothing may be left.
    """
    pieces = range(begin // CHUNK, (end - 1) // CHUNK + 1)
    shares = [Window(n, max(begin, n * CHUNK), min(end, (n + 1) * CHUNK)) for n in pieces]
    whole = [Window(n, first + (begin - first) % BLOCK, _last(begin, last, end)) for n, first, last in shares]
    return max(whole, key=lambda share: share.end - share.begin)


def _last(begin: int, last: int, end: int) -> int:
    return last if last == end else last - (last - begin) % BLOCK


def pieces(size: int) -> Sequence[tuple[int, int]]:
    """The pieces (begin, end) of the residuals of a vector of so many values."""
    return [(begin, min(size, begin + CHUNK)) for begin in range(0, size, CHUNK)]


@lru_cache(4)
def nothing_lost(size: int) -> bytes:
    """The root over the residuals of a vector of so many values of which nothing was lost yet."""
    return Commitment([bytes(4 * (end - begin)) for begin, end in pieces(size)]).root
