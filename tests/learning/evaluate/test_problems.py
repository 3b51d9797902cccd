from typing import Any

import pytest

from dedloc_kit.learning.data.masking import IGNORED
from dedloc_kit.learning.data.tokenizers.tokenizer import load_tokenizer, train_tokenizer
from dedloc_kit.learning.evaluate.dataset import Example
from dedloc_kit.learning.evaluate.problems import Classification, Ner

TRAIN = [Example(["mirna", "sees", "quellin"], ["B-PER", "O", "B-LOC"])]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("made") / "tokenizer"
    train_tokenizer(iter(["mirna sees quellin ."] * 20), 40, folder)
    return load_tokenizer(str(folder))


def ner(tokenizer: Any, max_length: int = 64) -> Ner:
    return Ner(tokenizer, max_length, TRAIN)


def test_the_first_subword_of_each_word_carries_its_tag_and_nothing_else_does(tokenizer: Any) -> None:
    problem = ner(tokenizer)
    words, tags = ["anna", "sees", "quellin"], ["B-PER", "O", "B-LOC"]
    sample = problem.encode(Example(words, tags))
    spans = [tokenizer(word, add_special_tokens=False)["input_ids"] for word in words]
    assert len(spans[0]) > 1
    assert sample.input_ids == [tokenizer.cls_token_id, *spans[0], *spans[1], *spans[2], tokenizer.sep_token_id]
    starts = [1, 1 + len(spans[0]), 1 + len(spans[0]) + len(spans[1])]
    assert sample.starts == dict(enumerate(starts))
    assert [problem.classes[label] for label in sample.labels if label != IGNORED] == tags
    assert [position for position, label in enumerate(sample.labels) if label != IGNORED] == starts


def test_words_that_were_cut_off_or_have_no_subword_are_scored_as_outside(tokenizer: Any) -> None:
    problem = ner(tokenizer, max_length=4)
    example = Example(["\u0001", "mirna", *["quellin"] * 9], ["O", "B-PER", *["B-LOC"] * 9])
    sample = problem.encode(example)
    assert len(sample.input_ids) == 4
    assert 0 not in sample.starts
    predicted = problem.decode(sample, [problem.number("B-PER")] * 4)
    assert len(predicted) == len(example.text)
    assert predicted[:2] == ["O", "B-PER"]
    assert predicted[-1] == "O"


def test_a_tag_that_no_training_sample_has_is_not_learned_but_scored(tokenizer: Any) -> None:
    sample = ner(tokenizer).encode(Example(["mirna"], ["B-ORG"]))
    assert set(sample.labels) == {IGNORED}
    assert Ner.score([["B-ORG"]], [["B-PER"]]) == 0.0


def test_the_score_counts_whole_entities() -> None:
    truth = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-ORG", "I-ORG"]]
    assert Ner.score(truth, truth) == 1.0
    # Right: one of three entities. Predicted: PER cut short, LOC right, nothing for ORG.
    predicted = [["B-PER", "O", "O", "B-LOC"], ["O", "O", "O"]]
    assert Ner.score(truth, predicted) == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert Ner.score([["O", "O"]], [["O", "O"]]) == 0.0


def test_a_type_without_a_prefix_is_read_as_inside() -> None:
    example = Ner.check(["last", "monday", "mirna"], ["TIM", "TIM", "B-PER"])
    assert example is not None
    assert example.label == ["I-TIM", "I-TIM", "B-PER"]
    assert Ner.score([example.label], [["I-TIM", "I-TIM", "O"]]) == pytest.approx(2 / 3)


def test_an_empty_sentence_is_left_out() -> None:
    assert Ner.check([], []) is None


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        ("mirna sees", ["O"], "not a list of words"),
        (["mirna", 3], ["O", "O"], "not a list of words"),
        (["mirna"], ["O", "O"], "not one tag for each word"),
        (["mirna"], "O", "not one tag for each word"),
        (["mirna"], [3], r"the tag 3 is no name; .*labels\.json"),
        (["mirna"], ["S-PER"], "'S-PER' is not IOB2; rename"),
    ],
)
def test_what_is_not_words_with_iob2_tags_is_named(words: Any, tags: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ner.check(words, tags)


@pytest.mark.parametrize(
    ("text", "label", "message"), [(3, "a", "there is int, not text"), ("a", None, "the class None")]
)
def test_what_is_not_a_text_with_a_class_is_named(text: Any, label: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Classification.check(text, label)
