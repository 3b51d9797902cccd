"""Documents packed into full sequences: no padding, and each position knows where its document begins."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.learning.data.text.tokens import Document


@dataclass(frozen=True)
class Pack:
    """Full sequences of several documents, one after the other."""

    ids: NDArray[np.int64]
    """[rows, length + lookahead]: the tokens; the lookahead is what the next row begins with."""
    positions: NDArray[np.int64]
    """[rows, length]: counted from where the document, or its part in this row, begins. Each 0 is a beginning."""


class Packer:
    """Cuts the stream `begin` document `end` `begin` document `end` ... into sequences of `length` tokens.

    Where both are the same token it stands once between two documents, and belongs to the one that it begins. What a
    sequence cannot take of a document stands at the front of the next one; no token is lost, and none is padding.

    :param lookahead: further tokens of each row, of the next one: 1 where the next token is to be told
    """

    def __init__(self, begin: int, end: int, length: int, lookahead: int = 0) -> None:
        self._length, self._lookahead = length, lookahead
        self._front = np.array([begin], dtype=np.int64)
        self._back = np.array([end] if end != begin else [], dtype=np.int64)

    def packs(self, documents: Iterable[Document], rows: int) -> Iterator[Pack]:
        """Packs of exactly `rows` sequences; when the documents end, one of fewer, and less than a sequence is left.

        An empty document is left out.
        """
        wanted = rows * self._length + self._lookahead
        parts: list[NDArray[np.int64]] = []
        starts: list[int] = []
        held = 0
        for document in documents:
            if not len(document.ids):
                continue
            starts.append(held)
            parts += [self._front, document.ids.astype(np.int64), self._back]
            held += len(self._front) + len(document.ids) + len(self._back)
            if held < wanted:
                continue
            ids, begins = np.concatenate(parts), np.array(starts, dtype=np.int64)
            while held >= wanted:
                yield self._cut(ids, begins, rows)
                ids, begins = ids[rows * self._length :], begins - rows * self._length
                begins = begins[begins >= 0]
                held = len(ids)
            parts, starts = [ids.copy()], begins.tolist()
        if parts and (left := (held - self._lookahead) // self._length) > 0:
            yield self._cut(np.concatenate(parts), np.array(starts, dtype=np.int64), left)

    def _cut(self, ids: NDArray[np.int64], begins: NDArray[np.int64], rows: int) -> Pack:
        length = self._length
        chosen = np.arange(rows)[:, None] * length + np.arange(length + self._lookahead)
        first = np.zeros((rows, length), dtype=np.int64)
        within = begins[begins < rows * length]
        first.reshape(-1)[within] = within % length
        return Pack(ids[chosen], np.arange(length) - np.maximum.accumulate(first, axis=1))
