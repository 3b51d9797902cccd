"""From tokenized documents to masked sentence-order pairs, the instances that ALBERT is pretrained on."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.masking import IGNORED, Masker
from dedloc_kit.learning.data.text.tokens import Document, Ids
from dedloc_kit.learning.data.tokenizers.special_tokens import MASKED, require

Arrays = dict[str, NDArray[Any]]
Pair = tuple[Ids, Ids]

_FIRST_WINDOW, _WINDOW = 4, 32
"""Instances are sorted by length within a window of so many batches; nobody waits for the first one to be as large."""
_LENGTH_UNIT = 8
"""Tokens: rows of a multiple of this length suit the matrix units of GPUs."""
_BARREN_DOCUMENTS = 10_000
"""So many documents without a single pair, before any other, mean that the data does not suit the task."""


def segment_bounds(ends: Ids, longest: int) -> list[int]:
    """Where a document is cut into segments: token indices from 0 to the number of tokens, ascending.

    Segments are sentences (`ends` as in `Document`); one of more than `longest` tokens is cut further, so that text
    without punctuation has segments too.
    """
    bounds = [0, *ends.tolist()]
    if len(bounds) > 1 and max(b - a for a, b in pairwise(bounds)) > longest:
        bounds = [0, *(cut for a, b in pairwise(bounds) for cut in (*range(a + longest, b, longest), b))]
    return bounds


def pair_spans(bounds: list[int], budget: int, generator: np.random.Generator) -> list[tuple[int, int, int]]:
    """Pairs of consecutive spans as token indices (start of A, start of B, end of B), at most `budget` tokens each.

    Whole sentences are taken until the budget is full, then A ends at a random one of them (ALBERT, section 3.1, and
    BERT's packing). A pair that is too long loses tokens at its outer ends, from its longer span first, so the two
    spans still meet. One sentence alone at the end of a document makes no pair.
    """
    spans = []
    first, last_bound = 0, len(bounds) - 1
    while last_bound - first >= 2:
        last = min(max(bisect_left(bounds, bounds[first] + budget), first + 2), last_bound)
        middle = bounds[generator.integers(first + 1, last)]
        spans.append(_fitted(bounds[first], middle, bounds[last], budget))
        first = last
    return spans


def _fitted(start: int, middle: int, end: int, budget: int) -> tuple[int, int, int]:
    first, second = middle - start, end - middle
    if first + second > budget:
        first = min(first, max(budget - second, budget // 2))
        second = min(second, budget - first)
    return middle - first, middle, middle + second


class PairBuilder:
    """Builds instances `[CLS] A [SEP] B [SEP]` with a fast tokenizer of transformers.

    :param longest_ngram: whole words are masked, up to so many in a row; 0: each token by itself
    """

    def __init__(self, tokenizer: Any, sequence_length: int, mlm_probability: float, longest_ngram: int = 0) -> None:
        require(tokenizer, MASKED)
        self.sequence_length = sequence_length
        self._masker = Masker(tokenizer, mlm_probability, longest_ngram)
        self._pad: int = tokenizer.pad_token_id
        self._cls: int = tokenizer.cls_token_id
        self._sep: int = tokenizer.sep_token_id
        self._fill = {"input_ids": self._pad, "token_type_ids": 0, "attention_mask": 0, "labels": IGNORED}

    def batches(
        self, documents: Iterable[Document], microbatch: int, generator: np.random.Generator
    ) -> Iterator[Arrays]:
        """Batches of exactly `microbatch` instances; when the documents end, one last smaller batch.

        The instances of a batch are of about the same length, and a batch is as long as its longest one: the last
        pair of a document is seldom full, and padding is computed like text. Arrays: `input_ids`, `token_type_ids`
        (int32), `attention_mask` (bool) and `labels` (int64) [instances, length], and `sentence_order_label`
        [instances]: 0 where A comes first in the document, 1 where the two are swapped.
        Raises UserError if the first 10,000 documents have not a single pair of sentences.
        """
        window = _FIRST_WINDOW * microbatch
        pairs: list[Pair] = []
        barren = 0
        for document in documents:
            made = self._pairs(document, generator)
            if made or barren < 0:
                barren = -1  # the data suits; a file of it that does not costs nothing
            else:
                barren += 1
            if barren >= _BARREN_DOCUMENTS:
                raise UserError(
                    f"the first {barren} documents have no two sentences; choose data with longer documents"
                )
            pairs += made
            while len(pairs) >= window:
                yield from self._cut(pairs[:window], microbatch, generator)
                del pairs[:window]
                window = _WINDOW * microbatch
        yield from self._cut(pairs, microbatch, generator)

    def of_one_length(self, instances: Sequence[Arrays]) -> list[Arrays]:
        """Instances of any batches, each of its arrays [length], padded or cut to the longest of them."""
        length = self._length(max(int(np.count_nonzero(each["attention_mask"])) for each in instances))
        return [
            {**each, **{name: _padded(each[name], length, fill) for name, fill in self._fill.items()}}
            for each in instances
        ]

    def _length(self, longest: int) -> int:
        return min(-(-longest // _LENGTH_UNIT) * _LENGTH_UNIT, self.sequence_length)

    def _pairs(self, document: Document, generator: np.random.Generator) -> list[Pair]:
        budget = self.sequence_length - 3
        bounds = segment_bounds(document.ends, longest=budget // 2)
        return [
            (document.ids[start:middle], document.ids[middle:end])
            for start, middle, end in pair_spans(bounds, budget, generator)
        ]

    def _cut(self, pairs: list[Pair], microbatch: int, generator: np.random.Generator) -> Iterator[Arrays]:
        """Batches of pairs of similar lengths in random order, but the longest one first and a smaller one last.

        So what a machine's memory does not hold shows at once, not after an hour.
        """
        by_chance = generator.permutation(len(pairs))
        lengths = np.array([len(first) + len(second) for first, second in pairs], dtype=np.int64)
        order = by_chance[np.argsort(-lengths[by_chance], kind="stable")]
        whole, rest = np.split(order, [len(order) // microbatch * microbatch])
        longest, others = np.split(whole.reshape(-1, microbatch), [1])
        for chosen in (*longest, *generator.permutation(others), rest):
            if len(chosen):
                yield self._batch([pairs[number] for number in chosen], generator)

    def _batch(self, pairs: list[Pair], generator: np.random.Generator) -> Arrays:
        swapped = generator.integers(2, size=len(pairs))
        ordered = [pair[::-1] if swap else pair for pair, swap in zip(pairs, swapped, strict=True)]
        between = np.array([1 + len(first) for first, _ in ordered])[:, None]
        ends = np.array([3 + len(first) + len(second) for first, second in ordered])[:, None]
        length = self._length(int(ends.max()))

        token_ids = np.full((len(pairs), length), self._pad, dtype=np.int32)
        token_ids[:, 0] = self._cls
        for row, (first, second) in zip(token_ids, ordered, strict=True):
            middle = 1 + len(first)
            row[1:middle] = first
            row[middle + 1 : middle + 1 + len(second)] = second
        np.put_along_axis(token_ids, between, self._sep, axis=1)
        np.put_along_axis(token_ids, ends - 1, self._sep, axis=1)
        positions = np.arange(length)
        attended = positions < ends
        masked, labels = self._masker.masked(token_ids, generator)
        return {
            "input_ids": masked,
            "token_type_ids": (attended & (positions > between)).astype(np.int32),
            "attention_mask": attended,
            "labels": labels,
            "sentence_order_label": swapped,
        }


def _padded(values: NDArray[Any], length: int, fill: int) -> NDArray[Any]:
    if len(values) >= length:
        return values[:length]
    padded = np.full(length, fill, dtype=values.dtype)
    padded[: len(values)] = values
    return padded
