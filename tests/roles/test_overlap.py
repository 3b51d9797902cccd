"""Fingerprints: which texts count as the same."""

import pytest

from dedloc_kit.roles.overlap import Fingerprints

TEXT = "The Fox jumps over the ﬁne dog, and then it sleeps."


@pytest.mark.parametrize(
    "other",
    [
        f"{TEXT} ",
        f"\ufeff{TEXT}\r\n",
        TEXT.replace(" ", "\u00a0"),
        TEXT.replace(" over", "\n  over"),
        TEXT.upper(),
        TEXT.replace("ﬁ", "fi"),
        TEXT.replace("jumps", "ju\u00admps"),
        f"\u200e\u202b{TEXT}\u202c\ufe0f",
    ],
)
def test_a_text_is_known_again_in_other_white_space_case_and_compatible_characters(other: str) -> None:
    assert Fingerprints().of(other) == Fingerprints().of(TEXT)


def test_texts_of_other_words_differ_and_of_very_long_ones_the_beginnings_are_compared() -> None:
    of = Fingerprints().of
    assert of(TEXT) != of(TEXT.replace("dog", "cat"))
    assert of(TEXT * 1_000) == of(f" {TEXT}" * 1_000 + "The end.")
