from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.learning.data.masking import IGNORED, word_starts
from dedloc_kit.learning.data.pairs import Arrays, PairBuilder, pair_spans, segment_bounds
from dedloc_kit.learning.data.text.tokens import Document, DocumentTokenizer
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer

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


def documents_of(tokenizer: Any, texts: list[str]) -> list[Document]:
    return list(DocumentTokenizer(tokenizer, "en").documents(texts))


def build(builder: PairBuilder, documents: list[Document]) -> Arrays:
    """All instances, padded to the full length."""
    batches = list(builder.batches(documents, 16, np.random.default_rng(0)))
    fill = {"input_ids": builder._pad, "labels": IGNORED}
    return {
        name: np.concatenate(
            [
                np.pad(
                    b[name],
                    ((0, 0), (0, builder.sequence_length - b[name].shape[1])),
                    constant_values=fill.get(name, 0),
                )
                if b[name].ndim == 2
                else b[name]
                for b in batches
            ]
        )
        for name in batches[0]
    }


def test_long_text_without_punctuation_still_has_segments() -> None:
    assert segment_bounds(np.array([100], dtype=np.uint32), longest=30) == [0, 30, 60, 90, 100]
    assert segment_bounds(np.array([5, 70, 100], dtype=np.uint32), longest=30) == [0, 5, 35, 65, 70, 100]
    assert segment_bounds(np.array([], dtype=np.uint32), longest=30) == [0]


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
    built = build(PairBuilder(tokenizer, 48, 0.15), documents_of(tokenizer, make_documents(40)))
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
    built = build(PairBuilder(tokenizer, 64, 0.15), documents_of(tokenizer, documents))
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


def test_masks_are_never_on_special_tokens_whatever_a_text_spells(tokenizer: Any) -> None:
    documents = [text.replace("River", "[SEP] [MASK] river") for text in make_documents(60)]
    built = build(PairBuilder(tokenizer, 64, 0.15), documents_of(tokenizer, documents))
    chosen = built["labels"] != IGNORED
    assert chosen.any(axis=1).all()
    assert not np.isin(built["labels"][chosen], tokenizer.all_special_ids).any()
    ordinary = built["attention_mask"].sum() - 3 * len(chosen)
    assert 0.13 < chosen.sum() / ordinary < 0.16


def test_words_are_masked_whole_if_the_run_says_so(tokenizer: Any) -> None:
    built = build(PairBuilder(tokenizer, 64, 0.15, longest_ngram=3), documents_of(tokenizer, make_documents(40)))
    chosen = built["labels"] != IGNORED
    original = np.where(chosen, built["labels"], built["input_ids"])
    goes_on = ~word_starts(tokenizer)[original[:, 1:]]
    goes_on &= ~np.isin(original[:, :-1], tokenizer.all_special_ids)
    goes_on &= ~np.isin(original[:, 1:], tokenizer.all_special_ids)
    assert goes_on.sum() > len(chosen)
    assert (chosen[:, 1:] == chosen[:, :-1])[goes_on].all()


def test_batches_are_deterministic_whole_and_lose_nothing(tokenizer: Any) -> None:
    builder, documents = PairBuilder(tokenizer, 64, 0.15), documents_of(tokenizer, make_documents(100))
    one = list(builder.batches(documents, 7, np.random.default_rng(3)))
    two = list(builder.batches(documents, 7, np.random.default_rng(3)))
    other = list(builder.batches(documents, 7, np.random.default_rng(4)))
    assert all((a[name] == b[name]).all() for a, b in zip(one, two, strict=True) for name in a)
    assert any(not np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(one, other, strict=False))
    assert all(len(batch["input_ids"]) == 7 for batch in one[:-1])
    assert 1 <= len(one[-1]["input_ids"]) <= 7
    assert sorted(lengths_of(one)) == sorted(lengths_of(other))


def lengths_of(batches: list[Arrays]) -> list[int]:
    """Of all instances, swapping and masks aside."""
    return [int(length) for batch in batches for length in batch["attention_mask"].sum(axis=1)]


def test_documents_of_any_length_waste_less_than_one_token_in_twenty_on_padding(tokenizer: Any) -> None:
    generator = np.random.default_rng(0)
    texts = [" ".join(make_documents(1, int(n))) for n in generator.geometric(1 / 20, size=1500) + 1]
    documents = documents_of(tokenizer, texts)
    for microbatch in (4, 32):
        batches = list(PairBuilder(tokenizer, 256, 0.15).batches(documents, microbatch, generator))
        attended = np.concatenate([batch["attention_mask"].ravel() for batch in batches])
        assert attended.mean() > 0.95
        assert batches[0]["input_ids"].shape[1] == 256, "what needs the most memory comes first"
        assert all(batch["attention_mask"][:, -8:].any() for batch in batches)
        # Every token of a document's pairs is there, but for those that a full pair has to leave out.
        assert attended.sum() > 0.9 * sum(len(document.ids) for document in documents)


def test_documents_of_one_sentence_only_do_not_read_for_ever(tokenizer: Any) -> None:
    documents = iter(documents_of(tokenizer, ["River."]) * 20_000)
    with pytest.raises(UserError, match="no two sentences"):
        next(PairBuilder(tokenizer, 64, 0.15).batches(documents, 4, np.random.default_rng(0)))
    assert len(list(documents)) > 9_000


def test_a_tokenizer_without_a_mask_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    bare = load_tokenizer(str(tmp_path))
    bare.mask_token = None
    with pytest.raises(UserError, match="no mask_token"):
        PairBuilder(bare, 64, 0.15)
