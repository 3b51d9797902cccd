"""How a byte-level BPE tokenizer splits a text before it merges bytes: exactly as llama.cpp's pre-tokenizer `qwen35`.

No token goes beyond a piece: a word with the one character before it (a space, mostly), a single digit, a run of
punctuation or of white space. Marks are part of a word: in Bengali or Thai they are half of it.

llama.cpp (`unicode_regex_split_custom_qwen35` in its unicode.cpp) and Qwen3.5's own tokenizer.json differ: llama.cpp
knows the letters of Unicode 15.1, `tokenizers` those of 16, and `(?i:'s)` matches the long s in `tokenizers` alone.
This pattern does what llama.cpp does, for every character. It has no syntax that only one regex engine knows.
"""

from typing import Any

from tokenizers import Regex, pre_tokenizers

NAME, ALPHABET = "qwen35", pre_tokenizers.ByteLevel.alphabet()
"""What llama.cpp calls it."""
_LONGEST_WORD, _LONGEST_RUN = 128, 16
"""Characters of a piece that a trainer sees: some scripts have no spaces, and its time goes by the longest piece."""
_UNICODE_16 = (
    *((0x0897, 0x0897), (0x1C89, 0x1C8A), (0xA7CB, 0xA7CD), (0xA7DA, 0xA7DC), (0x105C0, 0x105F3), (0x10D40, 0x10D85)),
    *((0x10EC2, 0x10EFC), (0x11380, 0x113E2), (0x116D0, 0x116E3), (0x11BC0, 0x11BF9), (0x11F5A, 0x11F5A)),
    *((0x13460, 0x143FA), (0x16100, 0x16139), (0x16D40, 0x16D79), (0x18CFF, 0x18CFF), (0x1CCF0, 0x1CCF9)),
    (0x1E5D0, 0x1E5FA),
)
NEW = "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNICODE_16)
"""The letters, marks and digits that Unicode 15.1 has not, within the brackets of a pattern: for llama.cpp they are
punctuation."""


def _pattern(word: str, run: str, newlines: str) -> str:
    """The alternatives in their order, with how often a character of each may come."""
    # Twice a negation, since not every engine knows an intersection: letters and marks, without the new ones.
    letter = rf"[^\p{{N}}\p{{P}}\p{{S}}\p{{Z}}\p{{C}}{NEW}]"
    digit = rf"[^\p{{L}}\p{{M}}\p{{P}}\p{{S}}\p{{Z}}\p{{C}}{NEW}]"
    return "|".join(
        [
            r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
            rf"(?:[^\r\n\p{{L}}\p{{N}}]|[{NEW}])?{letter}{word}",
            digit,
            rf" ?(?:[^\s\p{{L}}\p{{M}}\p{{N}}]|[{NEW}]){run}[\r\n]{newlines}",
            rf"\s{newlines}[\r\n]{run}",
            rf"\s{run}(?!\S)",  # of several spaces the last one belongs to the word behind them
            rf"\s{run}",
        ]
    )


PATTERN = _pattern("+", "+", "*")
_BOUNDED = _pattern(f"{{1,{_LONGEST_WORD}}}", f"{{1,{_LONGEST_RUN}}}", f"{{0,{_LONGEST_RUN}}}")


def byte_level(bounded: bool = False) -> Any:
    """The pre-tokenizer; `bounded`, a trainer's, cuts long pieces once more."""
    pieces = pre_tokenizers.Split(Regex(_BOUNDED if bounded else PATTERN), behavior="isolated")
    return pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
