"""The sentences of a text in any language: Wikimedia's `sentencex`, and two cases that its rules leave open."""

import unicodedata

from sentencex import segment

DEFAULT_LANGUAGE = "en"
LANGUAGE_CODE = r"^[a-z]{2,3}(-[a-z0-9]+)*$"
"""The pattern of an ISO 639 code, such as `bn`."""


def sentences(text: str, language: str) -> list[str]:
    """The sentences of a text, in order, without the white space around them.

    `language` is an ISO 639 code; where `sentencex` has no rules for it, those of English are taken. They know the
    terminators of all scripts, and the abbreviations of many languages. Like `sentencex`, and for the same reason,
    this would rather leave two sentences together than cut one: a full stop does not end a sentence right before a
    letter or a digit (`১.৫`: the library only knows Latin digits) or after a single letter (`ড. রহমান`).
    """
    found: list[str] = []
    for piece in segment(language, text):
        if found and found[-1].rstrip().endswith(".") and _goes_on(found[-1], piece):
            found[-1] += piece
        else:
            found.append(piece)
    return [sentence for piece in found if (sentence := piece.strip())]


def _goes_on(before: str, after: str) -> bool:
    if before[-1] == ".":
        return after[:1].isalnum()
    last_word = "".join(before.rstrip(" .").split()[-1:])
    letters = [character for character in last_word if not unicodedata.category(character).startswith("M")]
    return len(letters) == 1 and letters[0].isalpha()
