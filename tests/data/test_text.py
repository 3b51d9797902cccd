from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedloc_kit.data.masking import IGNORED, word_starts
from dedloc_kit.data.text import PairBuilder, pair_spans, segment_bounds, sentence_ends
from dedloc_kit.data.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.errors import UserError

WORDS = ["river", "sea", "bank", "boat", "water", "stone", "bridge", "mill", "field", "road", "tree", "house", "rain"]


def make_documents(number: int, sentences: int = 12) -> list[str]:
    generator = np.random.default_rng(0)
    return [
        " ".join(
            " ".join(generator.choice(WORDS, size=int(generator.integers(3, 12)))).capitalize() + "."
            for _ in range(sentences)
        )
        for _ in range(number)
    ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("made") / "tokenizer"
    train_tokenizer(iter([*make_documents(50), "আমি ভাত খাই। তুমি কী খাও?"]), 150, folder)
    return load_tokenizer(str(folder))


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three? Four", ["One.", " Two!", " Three?", " Four"]),
        ("Pi is 3.14 or so. Right.", ["Pi is 3.14 or so.", " Right."]),
        ("“Stop.” He stopped…  Then", ["“Stop.”", " He stopped…", "  Then"]),
        ("আমি ভাত খাই। তুমি কী খাও? ভাত॥", ["আমি ভাত খাই।", " তুমি কী খাও?", " ভাত॥"]),
        ("これは本です。「本？」はい", ["これは本です。", "「本？」", "はい"]),
        ("هل هذا كتاب؟ نعم۔ لا", ["هل هذا كتاب؟", " نعم۔", " لا"]),
        ("A title\n\nA paragraph", ["A title\n\n", "A paragraph"]),
    ],
)
def test_sentences_end_where_their_script_says(text: str, sentences: list[str]) -> None:
    ends = [0, *sentence_ends(text), len(text)]
    found = [text[start:end] for start, end in pairwise(ends) if start < end]
    assert found == sentences


def test_every_token_offset_is_right_and_segments_are_whole_sentences(tokenizer: Any) -> None:
    for text in [*make_documents(20), "আমি ভাত খাই। তুমি কী খাও?"]:
        encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        normalize = tokenizer.backend_tokenizer.normalizer.normalize_str
        for token, (start, end) in zip(encoding.tokens, encoding.offsets, strict=True):
            if token == "▁" and start == 0:
                continue  # put before the text, it shares the first character
            assert normalize(text[start:end]).strip() == token.replace("▁", " ").strip()
        bounds = segment_bounds(text, np.array([start for start, _ in encoding.offsets]), longest=1000)
        ends = [0, *sentence_ends(text), len(text)]
        sentences = [text[start:end] for start, end in pairwise(ends) if start < end]
        decoded = [tokenizer.decode(encoding.ids[a:b]) for a, b in pairwise(bounds)]
        assert decoded == [normalize(sentence).strip() for sentence in sentences]


def test_long_text_without_punctuation_still_has_segments() -> None:
    bounds = segment_bounds("word " * 100, np.arange(100) * 5, longest=30)
    assert bounds.tolist() == [0, 30, 60, 90, 100]


def test_pairs_are_consecutive_fill_the_budget_and_are_cut_from_outside() -> None:
    generator = np.random.default_rng(0)
    bounds = [0, 10, 20, 45, 50, 60, 65, 70]
    spans = pair_spans(bounds, 40, generator)
    assert [(start >= 0, middle in bounds, end - start) for start, middle, end in spans] == [
        (True, True, 40),
        (True, True, 25),
    ]
    assert all(start < middle < end for start, middle, end in spans)
    assert spans[0][2] <= 45 <= spans[1][0]
    assert pair_spans([0, 30], 40, generator) == []
    assert pair_spans([0], 40, generator) == []


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [([0, 10, 100], (0, 10, 40)), ([0, 90, 100], (60, 90, 100)), ([0, 50, 100], (30, 50, 70))],
)
def test_the_longer_span_gives_way_first(bounds: list[int], expected: tuple[int, int, int]) -> None:
    assert pair_spans(bounds, 40, np.random.default_rng(0)) == [expected]


def test_an_instance_is_a_pair_in_the_form_of_albert(tokenizer: Any) -> None:
    built = PairBuilder(tokenizer, 48, 0.15).build(make_documents(40), np.random.default_rng(0))
    original = np.where(built["labels"] == IGNORED, built["input_ids"], built["labels"])
    for row in range(len(original)):
        length = built["attention_mask"][row].sum()
        separators = np.flatnonzero(original[row] == tokenizer.sep_token_id)
        assert original[row, 0] == tokenizer.cls_token_id
        assert len(separators) == 2
        assert separators[1] == length - 1
        assert (original[row, length:] == tokenizer.pad_token_id).all()
        assert (built["attention_mask"][row, length:] == 0).all()
        types = [0] * (separators[0] + 1) + [1] * (length - separators[0] - 1) + [0] * (48 - length)
        assert built["token_type_ids"][row].tolist() == types


def test_half_of_the_pairs_are_swapped_and_their_label_says_so(tokenizer: Any) -> None:
    documents = make_documents(100)
    built = PairBuilder(tokenizer, 64, 0.15).build(documents, np.random.default_rng(0))
    labels = built["sentence_order_label"]
    assert 0.4 < labels.mean() < 0.6
    encoded = [tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids for text in documents]
    everything = " ".join(" ".join(map(str, ids)) + " |" for ids in encoded)
    original = np.where(built["labels"] == IGNORED, built["input_ids"], built["labels"])
    for row, swapped in zip(original, labels, strict=True):
        first_end, second_end = np.flatnonzero(row == tokenizer.sep_token_id)
        spans = [row[1:first_end], row[first_end + 1 : second_end]]
        in_order = np.concatenate(spans[::-1] if swapped else spans)
        assert f" {' '.join(map(str, in_order))} " in f" {everything} "


def test_masks_are_never_on_special_tokens_even_those_that_a_text_spells_out(tokenizer: Any) -> None:
    documents = [text.replace("River", "[SEP] [MASK] river") for text in make_documents(60)]
    built = PairBuilder(tokenizer, 64, 0.15).build(documents, np.random.default_rng(0))
    chosen = built["labels"] != IGNORED
    assert chosen.any(axis=1).all()
    assert not np.isin(built["labels"][chosen], tokenizer.all_special_ids).any()
    ordinary = built["attention_mask"].sum() - 3 * len(chosen)
    assert 0.13 < chosen.sum() / ordinary < 0.16


def test_words_are_masked_whole_if_the_run_says_so(tokenizer: Any) -> None:
    built = PairBuilder(tokenizer, 64, 0.15, longest_ngram=3).build(make_documents(40), np.random.default_rng(0))
    chosen = built["labels"] != IGNORED
    original = np.where(chosen, built["labels"], built["input_ids"])
    goes_on = ~word_starts(tokenizer)[original[:, 1:]]
    goes_on &= ~np.isin(original[:, :-1], tokenizer.all_special_ids)
    goes_on &= ~np.isin(original[:, 1:], tokenizer.all_special_ids)
    assert goes_on.sum() > len(chosen)
    assert (chosen[:, 1:] == chosen[:, :-1])[goes_on].all()


def test_batches_are_deterministic_whole_and_lose_nothing(tokenizer: Any) -> None:
    builder, documents = PairBuilder(tokenizer, 64, 0.15), make_documents(100)
    one = list(builder.batches(iter(documents), 7, np.random.default_rng(3)))
    two = list(builder.batches(iter(documents), 7, np.random.default_rng(3)))
    other = list(builder.batches(iter(documents), 7, np.random.default_rng(4)))
    assert all((a[name] == b[name]).all() for a, b in zip(one, two, strict=True) for name in a)
    assert any((a["input_ids"] != b["input_ids"]).any() for a, b in zip(one, other, strict=False))
    assert all(len(batch["input_ids"]) == 7 for batch in one[:-1])
    assert 1 <= len(one[-1]["input_ids"]) <= 7
    assert all(values.dtype == np.int64 for values in one[0].values())


def test_documents_of_one_sentence_only_do_not_read_for_ever(tokenizer: Any) -> None:
    documents = iter(["River."] * 20_000)
    with pytest.raises(UserError, match="no two sentences"):
        next(PairBuilder(tokenizer, 64, 0.15).batches(documents, 4, np.random.default_rng(0)))
    assert len(list(documents)) > 9_000


def test_a_tokenizer_without_a_mask_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    bare = load_tokenizer(str(tmp_path))
    bare.mask_token = None
    with pytest.raises(UserError, match="no mask_token"):
        PairBuilder(bare, 64, 0.15)
