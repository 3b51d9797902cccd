"""Which tokens of a batch are to be predicted, and what stands in their place: masked language modelling.

All rows of a batch are masked together with numpy.
"""

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dedloc_kit.learning.data.tokenizers.spelling import spellings

IGNORED = -100
"""The label of a token that is not to be predicted."""


def choose_tokens(maskable: NDArray[np.bool_], probability: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    """In each row the share `probability` of the maskable tokens, each by itself (BERT, section 3.1).

    At least one, since a row without labels would have no loss. Shapes: [rows, sequence_length].
    """
    count = _counts(maskable, probability)
    scores = np.where(maskable, generator.random(maskable.shape), 2.0)
    threshold = np.take_along_axis(np.sort(scores, axis=1), count[:, None] - 1, axis=1)
    return maskable & (scores <= threshold)


def choose_ngrams(
    maskable: NDArray[np.bool_],
    starts: NDArray[np.bool_],
    probability: float,
    longest: int,
    generator: np.random.Generator,
) -> NDArray[np.bool_]:
    """Whole words, one to `longest` in a row, until about the share `probability` of each row's tokens is chosen.

    A run of n words is drawn with a probability proportional to 1/n (ALBERT, section 4.1). The last run is taken or
    left, whichever comes nearer to the share, but one is taken in any case. `starts` [rows, sequence_length] says where
    a word begins. A token that may not be masked ends a word, not a run.
    """
    rows, length = maskable.shape
    begins = maskable & (starts | ~np.pad(maskable, ((0, 0), (1, 0)))[:, :-1])
    words = np.maximum(begins.cumsum(axis=1) - 1, 0)
    most = int(words.max(initial=0)) + 1
    weights = 1.0 / np.arange(1, longest + 1)
    runs = generator.choice(longest, size=(rows, most), p=weights / weights.sum()) + 1
    first_words = np.zeros((rows, longest * most + 1), dtype=np.int64)
    np.put_along_axis(first_words, runs.cumsum(axis=1), 1, axis=1)
    run_of_word = first_words[:, :most].cumsum(axis=1)
    run = np.take_along_axis(run_of_word, words, axis=1)

    scores = np.where(maskable, np.take_along_axis(generator.random((rows, most)), run, axis=1), 2.0)
    ascending = np.sort(scores, axis=1)
    run_ends = np.pad(ascending[:, 1:] != ascending[:, :-1], ((0, 0), (0, 1)), constant_values=True)
    distance = np.abs(np.arange(1, length + 1) - _counts(maskable, probability)[:, None])
    best = np.where(run_ends, distance, length + 1).argmin(axis=1)
    return maskable & (scores <= np.take_along_axis(ascending, best[:, None], axis=1))


def mask_tokens(
    token_ids: NDArray[np.int32],
    chosen: NDArray[np.bool_],
    mask_id: int,
    ordinary_ids: NDArray[np.int64],
    generator: np.random.Generator,
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Masked token ids and labels, both [rows, sequence_length] (BERT, section 3.1).

    Of the chosen tokens 80 % become the mask, 10 % one of `ordinary_ids`, 10 % stay as they are. Labels are the
    original ids where chosen and -100 elsewhere.
    """
    action = generator.random(token_ids.shape)
    masked = np.where(chosen & (action < 0.8), np.int32(mask_id), token_ids)
    replaced = chosen & (action >= 0.9)
    masked[replaced] = generator.choice(ordinary_ids, size=int(replaced.sum()))
    return masked, np.where(chosen, token_ids.astype(np.int64), IGNORED)


class Masker:
    """Chooses and masks the tokens of a batch with a fast tokenizer of transformers, which must have a mask token.

    :param longest_ngram: whole words are masked, up to so many in a row; 0: each token by itself
    """

    def __init__(self, tokenizer: Any, probability: float, longest_ngram: int = 0) -> None:
        self._probability, self._longest_ngram = probability, longest_ngram
        self._starts_word = word_starts(tokenizer) if longest_ngram else None
        self._mask: int = tokenizer.mask_token_id
        # By id, not by position: documents of token ids may hold any.
        self._special = np.zeros(len(tokenizer), dtype=np.bool_)
        self._special[list(tokenizer.all_special_ids)] = True
        self._ordinary = np.flatnonzero(~self._special)

    def masked(
        self, token_ids: NDArray[np.int32], generator: np.random.Generator
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Masked token ids and labels, as `mask_tokens`; special tokens are never chosen."""
        maskable = ~self._special[token_ids]
        if self._starts_word is None:
            chosen = choose_tokens(maskable, self._probability, generator)
        else:
            starts = self._starts_word[token_ids]
            chosen = choose_ngrams(maskable, starts, self._probability, self._longest_ngram, generator)
        return mask_tokens(token_ids, chosen, self._mask, self._ordinary, generator)


def word_starts(tokenizer: Any) -> NDArray[np.bool_]:
    """For each id of a fast tokenizer of transformers: does this token begin a word?

    Those do that have what stands before it: a space, or a mark of punctuation. Digits and punctuation marks stand for
    themselves.
    """
    spelled = [(spelling or b"").decode(errors="replace") for spelling in spellings(tokenizer)]
    return np.array([not (text and _in_words(text[0])) for text in spelled])


def _in_words(character: str) -> bool:
    """Letters, and the marks that stand on them: most of a word in Bengali or Thai are marks. Or parts of one."""
    return unicodedata.category(character)[0] in "LM" or character in "\u200c\u200d\ufffd"


def _counts(maskable: NDArray[np.bool_], probability: float) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.rint(probability * maskable.sum(axis=1)).astype(np.int64)
    return np.maximum(counts, 1)
