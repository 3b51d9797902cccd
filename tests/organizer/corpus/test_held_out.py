import numpy as np
import pytest

from dedloc_kit.organizer.corpus.held_out import HeldOut
from dedloc_kit.organizer.corpus.words import words_of
from tests.organizer.corpus.prose import changed, prose

generator = np.random.default_rng(7)
ONE, TWO, OTHER, LONG = (" ".join(prose(generator, words)) for words in (100, 60, 100, 3000))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (ONE, True),
        (ONE.upper().replace(".", "!"), True),
        (" ".join(changed(ONE.split(" "), 2, generator)), True),
        (f"{LONG} {ONE} {OTHER}", True),
        (ONE[: len(ONE) // 2], True),
        (f"{OTHER} {' '.join(ONE.split(' ')[:30])}", False),
        (OTHER, False),
        (" ".join(changed(ONE.split(" "), 12, generator)), False),
        ("Who goes there?", True),
        ("Who goes there? Nobody.", False),
        ("", False),
    ],
)
def test_what_is_held_out_is_found_whole_or_half_and_alone_or_within(text: str, found: bool) -> None:
    held_out = HeldOut.of([TWO, ONE, "", "Who goes there"])
    assert held_out.found_in(words_of([OTHER, text, OTHER])) == [False, found, False]


def test_without_held_out_text_nothing_is() -> None:
    assert HeldOut.of([]).found_in(words_of([ONE, ""])) == [False, False]


def test_a_sentence_that_many_documents_share_does_not_make_them_held_out() -> None:
    shared = " ".join(ONE.split(" ")[:20])
    held_out = HeldOut.of(f"{shared} {' '.join(prose(generator, 80))}" for _ in range(5))
    assert held_out.found_in(words_of([f"{shared} {OTHER}"])) == [False]
