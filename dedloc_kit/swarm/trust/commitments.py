"""A peer commits to many contents with one hash, and later shows that a content was among them.

A Merkle tree (RFC 6962) over the hashes of the contents. The root covers how many there are, so each place has one path
of a known length.
"""

import hashlib
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from dedloc_kit.records.record import Record

MAX_CONTENTS = 2**16
"""In one commitment: 64 parts of vectors that are larger than any that was trained, or the microbatches of a round."""
_LEAF, _NODE, _ROOT = b"\x00", b"\x01", b"\x02"  # so that none of them can be taken for another

Hash = Annotated[bytes, Field(min_length=32, max_length=32)]


class Opening(Record):
    """What shows a content's place in a commitment: at most 16 hashes."""

    number: Annotated[int, Field(ge=0, lt=MAX_CONTENTS)]
    """Which of the contents it is, from 0 on."""
    count: Annotated[int, Field(ge=1, le=MAX_CONTENTS)]
    """How many there are."""
    path: Annotated[tuple[Hash, ...], Field(max_length=16, strict=False)]
    """What each node on the way to the root is joined with, from the leaf on."""

    def shows(self, content: bytes, root: bytes) -> bool:
        """Was this content committed to, in this place, with this root?"""
        if self.number >= self.count:
            return False
        node, number, width, path = _leaf(content), self.number, self.count, list(self.path)
        while width > 1:
            if (number ^ 1) < width:
                if not path:
                    return False
                other = path.pop(0)
                node = _hash(_NODE, other, node) if number % 2 else _hash(_NODE, node, other)
            number, width = number // 2, (width + 1) // 2
        return not path and _root(self.count, node) == root


class Commitment:
    """The tree over some contents, which are not kept. Raises ValueError for none, or too many."""

    def __init__(self, contents: Sequence[bytes | memoryview]) -> None:
        if not 0 < len(contents) <= MAX_CONTENTS:
            raise ValueError(f"a commitment to {len(contents)} contents; from 1 to {MAX_CONTENTS} can be")
        self._levels = [[_leaf(content) for content in contents]]
        while len(below := self._levels[-1]) > 1:
            pairs = [below[number : number + 2] for number in range(0, len(below), 2)]
            self._levels.append([_hash(_NODE, *pair) if len(pair) == 2 else pair[0] for pair in pairs])
        self.root = _root(len(contents), self._levels[-1][0])

    @property
    def count(self) -> int:
        """How many contents there are."""
        return len(self._levels[0])

    def opening(self, number: int) -> Opening:
        """Of the content of this number; raises ValueError if there is none."""
        count = self.count
        if not 0 <= number < count:
            raise ValueError(f"content {number} of {count}")
        others = [(level, (number >> height) ^ 1) for height, level in enumerate(self._levels)]
        path = tuple(level[other] for level, other in others if other < len(level))
        return Opening(number=number, count=count, path=path)


def _leaf(content: bytes | memoryview) -> bytes:
    return _hash(_LEAF, hashlib.sha256(content).digest())


def _root(count: int, top: bytes) -> bytes:
    return _hash(_ROOT, count.to_bytes(8, "big"), top)


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()
