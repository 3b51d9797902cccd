"""How byte-level tokenizers split a text: as llama.cpp does."""

import pytest

from dedloc_kit.learning.data.tokenizers import qwen35

PIECES: dict[str, list[str]] = {
    "ordinary text": [
        "The",
        " rivers",
        " don",
        "'t",
        " run",
        ",",
        " they",
        "'RE",
        " slow",
        "!!\n\n",
        "Café",
        " (",
        "été",
        ").",
    ],
    "code": ["def", " f", "(x", "):\n", "   ", " return", " ", "1", "2", " *", " x", "  \r\n", "\t", "#", " ", "½"],
    "spaces": [" ", " a", "\t\t", "\tb", "\u00a0c", " ", "\u3000d", "  \n \n", "  ", " e", "   "],
    "Bengali": ["আমার", " সোনার", " বাংলা", "।", " র", "\u200d্যাব", " ক্", "\u200dষ", " এতদ্", "\u200cদ্বারা", " ", "১", "২"],
    "Thai": ["น้ำใจของผู้คน", " กตัญญู", " ", "๑", "๒", "\u200bฯลฯ"],
    "Persian": ["می", "\u200cخواهم", " لآلئ", "؟", " ", "٣", "٤"],
    "emoji": ["👍🏽", " 👩\u200d👩\u200d👧", " ❤", "\ufe0f", "1", "\ufe0f\u20e3", "❤\ufe0f"],
    "the long s, which is no s": ["that", "'\u017fa", " '", "tis", "'s", "a"],
    "what is a letter, a mark or a digit in Unicode 16 alone": [
        *("a", "\U00010d4a\U00010d70", "b", " \U00016d40\U00016d71", " !\u0897", "e\u0301")
    ],
    "a character of no Unicode yet": ["a", "\U000e0fffb", " \U000e0fff\U000e0fff", "1"],
}
"""Pieces of texts, one after the other; `test_llama_cpp.py` holds that llama.cpp's are the same."""


@pytest.mark.parametrize("name", PIECES)
def test_a_text_is_split_where_llama_cpp_splits_it(name: str) -> None:
    text = "".join(PIECES[name])
    found = qwen35.byte_level().pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in found] == PIECES[name]


def test_a_trainer_sees_no_endless_piece() -> None:
    for character, longest in {"ก": 129, "=": 16, " ": 16, "\n": 32}.items():
        found = qwen35.byte_level(bounded=True).pre_tokenize_str(character * 1000 + "a")
        assert max(end - start for _, (start, end) in found) <= longest
        assert sum(end - start for _, (start, end) in found) == 1001
