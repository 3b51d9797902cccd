"""What the owners of a chunk in all rows hand in to its finisher, kept as it came."""

from collections.abc import Collection

import torch
from torch import Tensor

from dedloc_kit.learning.train.flat import CHUNK
from dedloc_kit.swarm.averaging.encoding.codec import check, decode, read_part
from dedloc_kit.swarm.averaging.encoding.feedback import Coding
from dedloc_kit.swarm.averaging.reduction.plan import Deal, Plan

_HEADER_BYTES = 64
"""That a mean may have besides its values."""


class Means:
    """Of the chunks that one peer finishes, by one roll after the other."""

    def __init__(self, plan: Plan, coding: Coding, mine: int) -> None:
        self._plan, self._coding, self._mine = plan, coding, mine
        self._roll, self._deal = b"", plan.first
        self._kept: dict[int, dict[int, tuple[bytes, bytes]]] = {}
        """By sender and chunk: for which roll, and the values. It tells who has sent what."""
        self._values = torch.empty(CHUNK)

    def begin(self, roll: bytes, deal: Deal) -> None:
        """Who counts, and who hands in what. What came early may be of this roll."""
        self._roll, self._deal = roll, deal

    def take(self, sender: int, number: int, roll: bytes, encoded: bytes) -> int:
        """Keep a mean; which chunk it is. Raises ValueError unless it is the first for its roll and can be read."""
        if sender not in self._plan.reducers or number >= len(self._plan.chunks):
            raise ValueError("a mean comes from somebody who does not reduce, or there is no such chunk")
        begin, end = self._plan.chunks[number]
        if len(encoded) > self._coding.of_means(begin, self._plan.layout).byte_count(end - begin) + _HEADER_BYTES:
            raise ValueError(f"the mean of chunk {number} takes more bytes than it needs")
        check(read_part(encoded), end - begin)
        kept = self._kept.setdefault(sender, {})
        if kept.get(number, (b"", b""))[0] == roll and kept[number][1] != encoded:
            raise ValueError(f"the mean of chunk {number} came twice")
        if number in kept or self._room(kept):
            kept[number] = roll, encoded
        return number

    def _room(self, kept: Collection[int]) -> bool:
        """Of each sender as many are kept as it may have to hand in here at most: it may have heard before this peer
        does that one finishes more, or another deals with less."""
        finished = sum(finisher == self._mine for finisher in self._deal.finishers)
        return len(kept) < 2 * max(1, finished) + 2

    def complete(self, number: int, rows: Collection[int]) -> bool:
        """Has the owner in each of these rows handed in its mean for the roll?"""
        return all(self._found(row, number) is not None for row in rows)

    def of(self, row: int, number: int) -> Tensor:
        """A row's mean, float32 [numel], until the next call."""
        found = self._found(row, number)
        assert found is not None
        begin, end = self._plan.chunks[number]
        return decode(read_part(found), end - begin, self._values[: end - begin])

    def _found(self, row: int, number: int) -> bytes | None:
        owners = self._deal.owners[row]
        roll, encoded = self._kept.get(owners[number], {}).get(number, (b"", b"")) if owners else (b"", b"")
        return encoded if encoded and roll == self._roll else None
