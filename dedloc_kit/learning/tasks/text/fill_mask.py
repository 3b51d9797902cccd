"""Sentences with one word hidden, for viewers: which word does the model put there?"""

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dedloc_kit.learning.data.masking import IGNORED, word_starts
from dedloc_kit.learning.data.pairs import Arrays
from dedloc_kit.learning.task import Usage
from dedloc_kit.records.evaluation import FillMask

SAMPLES = 5
"""So many are shown."""
_CONTEXT_TOKENS = 14
"""So much is shown on each side of the hidden word; the model sees the whole sample."""
_MAX_WORD = 3
_FEWEST_CHARACTERS = 4
"""Shorter words are mostly particles, and a word of many tokens is mostly a rare name: neither tells much."""

_USAGE = """\
from transformers import pipeline

fill = pipeline("fill-mask", model="{repository}")
print(fill(f"Put a sentence here and {{fill.tokenizer.mask_token}} in the place of a word."))
"""


def fill_mask_usage(repository: str) -> Usage:
    """How to use an exported model that fills masks."""
    return Usage("transformers", "fill-mask", _USAGE.format(repository=repository))


@dataclass(frozen=True)
class _Gap:
    row: int
    tokens: slice
    before: str
    truth: str
    after: str


class FillMaskSamples:
    """One word hidden in each of the first samples of a batch of masked pairs, the batch's own masks taken away.

    :param arrays: as PairBuilder makes them
    :param tokenizer: a fast tokenizer of transformers
    :param count: at most so many samples; one without a suitable word is left out
    """

    def __init__(self, arrays: Arrays, tokenizer: Any, count: int, generator: np.random.Generator) -> None:
        self._tokenizer = tokenizer
        token_ids = np.where(arrays["labels"] != IGNORED, arrays["labels"], arrays["input_ids"])
        starts = word_starts(tokenizer)[token_ids]
        found = (self._gap(row, token_ids[row], starts[row], generator) for row in range(len(token_ids)))
        self._gaps = list(islice(filter(None, found), count))
        rows = [gap.row for gap in self._gaps]
        self.arrays = {name: values[rows] for name, values in arrays.items()}
        """The same names and shapes; only the hidden words have labels."""
        self.arrays["input_ids"] = token_ids[rows]
        self.arrays["labels"] = np.full_like(token_ids[rows], IGNORED)
        for index, gap in enumerate(self._gaps):
            self.arrays["labels"][index, gap.tokens] = token_ids[gap.row, gap.tokens]
            self.arrays["input_ids"][index, gap.tokens] = tokenizer.mask_token_id

    def __len__(self) -> int:
        return len(self._gaps)

    def filled(self, token_scores: torch.Tensor) -> tuple[FillMask, ...]:
        """With the model's best guesses; `token_scores` is [labels of `arrays` in their order, vocabulary]."""
        guessed = token_scores.argmax(dim=-1).cpu().numpy()
        sizes = [gap.tokens.stop - gap.tokens.start for gap in self._gaps]
        words = np.split(guessed, np.cumsum(sizes)[:-1])
        return tuple(
            FillMask(before=gap.before, guess=self._text(word)[:60], truth=gap.truth, after=gap.after)
            for gap, word in zip(self._gaps, words, strict=True)
        )

    def _gap(
        self, row: int, ids: NDArray[np.int64], starts: NDArray[np.bool_], generator: np.random.Generator
    ) -> _Gap | None:
        """A suitable word of this row, drawn by chance, with the text around it."""
        tokenizer = self._tokenizer
        outer = tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id
        # The row's own ends too: a packed one may begin or stop within a document.
        edges = np.isin(ids, [each for each in outer if each is not None])
        special = np.isin(ids, tokenizer.all_special_ids)
        ends = np.append(np.flatnonzero(starts | edges), len(ids))
        for start in generator.permutation(np.flatnonzero(starts & ~special)):
            end = int(ends[np.searchsorted(ends, start, side="right")])
            truth = self._text(ids[start:end])
            suitable = len(truth) >= _FEWEST_CHARACTERS and any(map(str.isalpha, truth))
            if end - start > _MAX_WORD or special[start:end].any() or not suitable:
                continue
            first = int(np.append(-1, np.flatnonzero(edges[:start]))[-1]) + 1
            last = int(np.append(np.flatnonzero(edges[end:]), len(ids) - end)[0]) + end
            shown = slice(max(first, start - _CONTEXT_TOKENS), min(last, end + _CONTEXT_TOKENS))
            before, after = self._around(ids[shown], int(start) - shown.start, end - shown.start)
            return _Gap(
                row,
                slice(int(start), end),
                before=("… " if shown.start > first else "") + before[-200:],
                truth=truth[:60],
                after=after[:200] + (" …" if shown.stop < last else ""),
            )
        return None

    def _around(self, ids: NDArray[np.int64], start: int, end: int) -> tuple[str, str]:
        """The text before and after a word, with the spaces that belong between them."""
        before, word, after, whole = (self._text(part) for part in (ids[:start], ids[start:end], ids[end:], ids))
        inside = whole[len(before) : len(whole) - len(after)]
        if before + inside + after != whole or inside.strip() != word:  # a tokenizer that decodes in some other way
            return f"{before} ", f" {after}"
        gap = inside.index(word)
        return before + inside[:gap], inside[gap + len(word) :] + after

    def _text(self, ids: NDArray[np.int64]) -> str:
        text: str = self._tokenizer.backend_tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return " ".join(text.split())
