import numpy as np
import pytest

from dedloc_kit.organizer.corpus.words import grams, words_of


def shown(texts: list[str]) -> list[list[int]]:
    """The lengths of each text's words."""
    words = words_of(texts)
    return [words.of(number).lengths.tolist() for number in range(len(texts))]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("Hello, World! 12", [5, 5, 2]),
        ("", []),
        (" \n…", []),
        ("ভাষা ক্\u200dষ", [4, 4]),
        ("漢字かな mixed 12", [1, 1, 1, 1, 5, 2]),
        ("ภาษาไทย", [1] * 7),
        ("\U00020000\U0001f600a", [1, 1]),
    ],
)
def test_words_are_told_apart_in_any_script(text: str, lengths: list[int]) -> None:
    assert shown([text]) == [lengths]


def test_each_text_of_a_batch_has_the_words_that_it_has_alone() -> None:
    texts = ["Hello, World!", "", "漢字 abc", "x", "", "one two three four five six"]
    words, alone = words_of(texts), [words_of([text]) for text in texts]
    for number, each in enumerate(alone):
        for name in ("hashes", "lengths", "letters", "alone"):
            assert getattr(words.of(number), name).tolist() == getattr(each, name).tolist()
        runs, offsets = grams(words, 3)
        assert runs[offsets[number] : offsets[number + 1]].tolist() == grams(each, 3)[0].tolist()


def test_case_and_punctuation_do_not_count_and_all_else_does() -> None:
    one, two, other, turned = (words_of([text]).hashes for text in ("Ab, CD!", "ab cd", "ab ce", "ba cd"))
    assert one.tolist() == two.tolist()
    assert other[1] != two[1]
    assert turned[0] != two[0]


def test_runs_are_known_again_anywhere_and_hang_on_the_order() -> None:
    (first, _), (second, _) = (grams(words_of([text]), 2) for text in ("a b c a b", "z a b"))
    assert first[0] == first[3] == second[1]
    assert len(set(first.tolist())) == 3
    assert grams(words_of(["a b"]), 3)[0] != grams(words_of(["b a"]), 3)[0]


def test_words_and_runs_do_not_collide() -> None:
    words = words_of([" ".join(f"{a}{b}" for a in range(200) for b in "abcdefgh")])
    assert len(np.unique(words.hashes)) == 1600
    assert len(np.unique(grams(words, 5)[0])) == 1596
