"""Which tokens are masked: the share is right, words stay whole, and runs have ALBERT's lengths."""

from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from dedloc_kit.learning.data.masking import IGNORED, choose_ngrams, choose_tokens, mask_tokens, word_starts
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer


def test_masking_is_80_percent_mask_10_percent_random_10_percent_kept() -> None:
    token_ids = np.full((200, 100), 7)
    maskable = np.ones_like(token_ids, dtype=np.bool_)
    maskable[:, 0] = False
    ordinary = np.arange(5, 1000)
    generator = np.random.default_rng(0)
    masked, labels = mask_tokens(token_ids, choose_tokens(maskable, 0.15, generator), 4, ordinary, generator)
    chosen = labels != IGNORED
    assert (chosen.sum(axis=1) == 15).all()
    assert not chosen[:, 0].any()
    assert (labels[chosen] == 7).all()
    assert (masked[~chosen] == 7).all()
    assert abs((masked[chosen] == 4).mean() - 0.8) < 0.03
    assert abs((masked[chosen] == 7).mean() - 0.1) < 0.02
    assert np.isin(masked[chosen], [4, *ordinary]).all()


def random_words(rows: int, length: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What may be masked (not the first token, one in the middle and the last ones) and where words begin."""
    generator = np.random.default_rng(1)
    maskable = np.ones((rows, length), dtype=np.bool_)
    maskable[:, [0, length // 2]] = False
    maskable[np.arange(rows), generator.integers(length // 2 + 1, length, size=rows)] = False
    return maskable, generator.random((rows, length)) < 0.4


def words_of(maskable: NDArray[np.bool_], starts: NDArray[np.bool_]) -> list[list[int]]:
    """The positions of each word in a row, by the plain loop."""
    words: list[list[int]] = []
    for position, (may, begins) in enumerate(zip(maskable, starts, strict=True)):
        if may and (begins or position == 0 or not maskable[position - 1]):
            words.append([position])
        elif may:
            words[-1].append(position)
    return words


@pytest.mark.parametrize("longest", [1, 3])
def test_words_are_chosen_whole_and_in_all_the_share_is_right(longest: int) -> None:
    maskable, starts = random_words(400, 128)
    chosen = choose_ngrams(maskable, starts, 0.15, longest, np.random.default_rng(2))
    assert not (chosen & ~maskable).any()
    assert chosen.any(axis=1).all()
    for row in range(len(chosen)):
        assert all(
            len({bool(chosen[row, token]) for token in word}) == 1 for word in words_of(maskable[row], starts[row])
        )
    assert abs(chosen.sum() / maskable.sum() - 0.15) < 0.005


def test_runs_of_one_two_and_three_words_are_as_frequent_as_in_albert() -> None:
    maskable = np.ones((300, 4000), dtype=np.bool_)
    chosen = choose_ngrams(maskable, maskable, 0.01, 3, np.random.default_rng(3))
    # One word of a hundred: runs hardly ever touch, so their lengths are those that were drawn.
    lengths = [len(list(run)) for row in chosen for value, run in groupby(row) if value]
    shares = [lengths.count(n) / len(lengths) for n in (1, 2, 3)]
    assert shares == pytest.approx([6 / 11, 3 / 11, 2 / 11], abs=0.02)


def test_every_word_is_as_likely_as_any_other() -> None:
    maskable = np.ones((20_000, 30), dtype=np.bool_)
    maskable[:, 15] = False
    often = choose_ngrams(maskable, maskable, 0.2, 3, np.random.default_rng(4)).mean(axis=0)
    assert often[15] == 0.0
    assert often[np.arange(30) != 15].std() < 0.03


def test_a_row_without_anything_to_mask_stays_as_it_is() -> None:
    nothing = np.zeros((2, 10), dtype=np.bool_)
    assert not choose_ngrams(nothing, nothing, 0.15, 3, np.random.default_rng(5)).any()


def test_words_of_a_unigram_tokenizer_begin_at_spaces_digits_and_punctuation(tmp_path: Path) -> None:
    texts = ["The river runs to the sea, 12 miles.", "আমি বাংলায় গান গাই। ১২ জন গায়।"]
    train_tokenizer(iter(10 * texts), 150, tmp_path / "tokenizer")
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer"))
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    starts = dict(zip(tokens, word_starts(tokenizer), strict=True))
    assert all(begins for token, begins in starts.items() if token.startswith("▁"))
    assert starts["."]
    assert starts["।"]
    assert starts["১"]
    assert not starts["ি"], "a vowel sign is a part of a word"


WORD_PIECE = Tokenizer(models.WordPiece({"play": 0, "##ing": 1, ".": 2}, unk_token="."))
BYTE_LEVEL = Tokenizer(
    models.BPE(dict(zip(["Ġthe", "re", "1", "!", "à¦", "Ġà¦", "(the", "âĢįa"], range(8), strict=True)), [])
)
BYTE_LEVEL.decoder = decoders.ByteLevel()
SPACES = Tokenizer(models.Unigram([("<0xE0>", -1.0), (" Ġa", -1.0), ("Ġ", -1.0), (" ", -1.0)], 0, byte_fallback=True))


@pytest.mark.parametrize(
    ("tokenizer", "expected"), [(WORD_PIECE, [1, 0, 1]), (BYTE_LEVEL, [1, 0, 1, 1, 0, 1, 1, 0]), (SPACES, [0, 1, 0, 1])]
)
def test_other_ways_to_mark_a_word_are_known(tokenizer: Tokenizer, expected: list[int]) -> None:
    starts = word_starts(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert starts.tolist() == [bool(value) for value in expected]
