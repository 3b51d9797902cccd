"""From documents to masked sentence-order pairs, the instances that ALBERT is pretrained on."""

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.data.masking import choose_ngrams, choose_tokens, mask_tokens, word_starts
from dedloc_kit.errors import UserError

Arrays = dict[str, NDArray[np.int64]]

_CLOSING = "[\"'”’»)\\]』」]*"
_SENTENCE_END = re.compile(
    rf"[.?!…]+{_CLOSING}(?=\s)"  # ASCII stops also stand inside numbers and names: only before a space
    rf"|[।॥。！？؟۔։።၊။។᠃᱾꓿]+{_CLOSING}"
    r"|\n+"
)
_DOCUMENTS_AT_ONCE = 32
_BARREN_DOCUMENTS = 10_000
"""So many documents in a row without a single pair mean that the data does not suit the task."""


def sentence_ends(text: str) -> list[int]:
    """The character positions right behind each sentence, the end of the text not among them."""
    return [match.end() for match in _SENTENCE_END.finditer(text)]


def segment_bounds(text: str, token_starts: NDArray[np.int64], longest: int) -> NDArray[np.int64]:
    """Where a tokenized text is cut into sentences: token indices from 0 to the number of tokens, ascending.

    `token_starts` holds each token's first character. A sentence of more than `longest` tokens is cut further, so
    that text without punctuation has segments too.
    """
    cuts = np.searchsorted(token_starts, sentence_ends(text))
    bounds = np.unique(np.concatenate([[0], cuts, [len(token_starts)]]))
    pieces = [np.arange(start, end, longest) for start, end in pairwise(bounds)]
    return np.concatenate([*pieces, [len(token_starts)]]).astype(np.int64)


def pair_spans(bounds: list[int], budget: int, generator: np.random.Generator) -> list[tuple[int, int, int]]:
    """Pairs of consecutive spans as token indices (start of A, start of B, end of B), at most `budget` tokens each.

    Whole sentences are taken until the budget is full, then A ends at a random one of them (ALBERT, section 3.1, and
    BERT's packing). A pair that is too long loses tokens at its outer ends, from its longer span first, so the two
    spans still meet. One sentence alone at the end of a document makes no pair.
    """
    spans = []
    first = 0
    last_bound = len(bounds) - 1
    for last in range(1, len(bounds)):
        enough = last - first >= 2 and bounds[last] - bounds[first] >= budget
        if not enough and last < last_bound:
            continue
        if last - first >= 2:
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

    def __init__(self, tokenizer: Any, sequence_length: int, mask_probability: float, longest_ngram: int = 0) -> None:
        for name in ("pad_token", "cls_token", "sep_token", "mask_token"):
            if getattr(tokenizer, name) is None:
                raise UserError(f"the tokenizer has no {name}; make one with: dedloc tokenizer RUN.toml")
        self.sequence_length = sequence_length
        self.mask_probability = mask_probability
        self._longest_ngram = longest_ngram
        self._starts_word = word_starts(tokenizer) if longest_ngram else None
        self._backend = tokenizer.backend_tokenizer
        self._pad: int = tokenizer.pad_token_id
        self._cls: int = tokenizer.cls_token_id
        self._sep: int = tokenizer.sep_token_id
        self._mask: int = tokenizer.mask_token_id
        # By id, not by position: a document may spell out "[SEP]", and the tokenizer takes it for the real one.
        self._special = np.zeros(len(tokenizer), dtype=np.bool_)
        self._special[list(tokenizer.all_special_ids)] = True
        self._ordinary = np.flatnonzero(~self._special)

    def build(self, texts: list[str], generator: np.random.Generator) -> Arrays:
        """All the instances that these documents make, in random order, each document tokenized once.

        Returns `input_ids`, `token_type_ids`, `attention_mask` and `labels` [instances, sequence_length], and
        `sentence_order_label` [instances]: 0 where A comes first in the document, 1 where the two are swapped.
        """
        budget = self.sequence_length - 3
        pairs: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for text, encoding in zip(texts, self._backend.encode_batch(texts, add_special_tokens=False), strict=True):
            token_ids = np.array(encoding.ids, dtype=np.int64)
            starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
            bounds = segment_bounds(text, starts, longest=budget // 2)
            for start, middle, end in pair_spans(bounds.tolist(), budget, generator):
                pairs.append((token_ids[start:middle], token_ids[middle:end]))

        order = generator.permutation(len(pairs))
        swapped = generator.integers(2, size=len(pairs))
        shape = (len(pairs), self.sequence_length)
        token_ids = np.full(shape, self._pad, dtype=np.int64)
        token_types = np.zeros(shape, dtype=np.int64)
        attended = np.zeros(shape, dtype=np.int64)
        for row, number in enumerate(order):
            first, second = pairs[number][::-1] if swapped[row] else pairs[number]
            between, end = 1 + len(first), 3 + len(first) + len(second)
            token_ids[row, 0] = self._cls
            token_ids[row, 1:between] = first
            token_ids[row, between] = self._sep
            token_ids[row, between + 1 : end - 1] = second
            token_ids[row, end - 1] = self._sep
            token_types[row, between + 1 : end] = 1
            attended[row, :end] = 1
        masked, labels = mask_tokens(
            token_ids, self._choose(token_ids, generator), self._mask, self._ordinary, generator
        )
        return {
            "input_ids": masked,
            "token_type_ids": token_types,
            "attention_mask": attended,
            "labels": labels,
            "sentence_order_label": swapped,
        }

    def _choose(self, token_ids: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.bool_]:
        maskable = ~self._special[token_ids]
        if self._starts_word is None:
            return choose_tokens(maskable, self.mask_probability, generator)
        starts = self._starts_word[token_ids]
        return choose_ngrams(maskable, starts, self.mask_probability, self._longest_ngram, generator)

    def batches(self, documents: Iterator[str], microbatch: int, generator: np.random.Generator) -> Iterator[Arrays]:
        """Batches of exactly `microbatch` instances; when the documents end, one last smaller batch.

        Raises UserError if 10,000 documents in a row have not a single pair of sentences.
        """
        waiting = self.build([], generator)
        barren = 0
        while texts := list(islice(documents, _DOCUMENTS_AT_ONCE)):
            built = self.build(texts, generator)
            barren = 0 if len(built["input_ids"]) else barren + len(texts)
            if barren >= _BARREN_DOCUMENTS:
                raise UserError(f"{barren} documents in a row have no two sentences; choose data with longer documents")
            waiting = {name: np.concatenate([waiting[name], built[name]]) for name in waiting}
            whole = len(waiting["input_ids"]) // microbatch * microbatch
            for start in range(0, whole, microbatch):
                yield {name: values[start : start + microbatch] for name, values in waiting.items()}
            waiting = {name: values[whole:] for name, values in waiting.items()}
        if len(waiting["input_ids"]):
            yield waiting
