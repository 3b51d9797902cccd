"""Texts that are not UTF-8, or once were taken for something else than they were."""

import re
from collections.abc import Iterator
from typing import Any

NOT_UTF8 = "is not UTF-8"

_LOOKED_AT = 2**13
"""Bytes."""
_EAST_ASIAN = ("cp932", "euc_jp", "gb18030", "big5", "cp949")
_ENCODINGS = (
    *("cp1252", "cp1251", "koi8_r", "koi8_u"),
    *_EAST_ASIAN,
    *("cp1250", "iso8859_2", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257"),
)
"""In which files are usually found, the more usual ones first; those of East Asia hold the older ones."""
_LATIN = ("cp1252", "cp1250", "iso8859_2", "cp1254", "cp1257")
"""In each of which a text of the others is hardly less likely."""
_NAMED = 3
"""At most."""
_LEAST = 0.1
"""Of a language's usual letters, for an encoding that any bytes may be in."""
_CHAOS, _LATIN_CHAOS, _COHERENCE = 0.02, 0.1, 0.6
"""An encoding that is so much as likely as another one is not told from it."""
_MOST = 0.1
"""Chaos beyond which a text is in no encoding of East Asia."""

_BEYOND_ASCII = re.compile(r"[^\0-\x7f]{2,}")
_LETTERS = re.compile(r"[^\W\d_]")
_LATIN1 = re.compile(r"[\u00c0-\u00ff]")
_CONTROLS = re.compile(r"[\x80-\x84\x86-\x9f]")
_READ_AS = ("cp1252", "cp1251")


def which(content: bytes) -> str:
    """In words what to do with text that is not UTF-8; an encoding is named if the text itself tells it.

    :param content: the beginning of a file
    """
    lines = content.splitlines(keepends=True)
    odd = _up_to(_LOOKED_AT, [line for line in (lines[:-1] or lines) if not _is_utf8(line)])
    found = _encodings(odd) if odd else []
    if not found:
        return "find out its encoding, and convert it with: iconv -f ENCODING -t UTF-8"
    named = [encoding.upper().replace("_", "-") for encoding in found]
    if len(named) > 1:
        some = " or ".join(named)
        return f"it may be {some}; convert it with the right one: iconv -f ENCODING -t UTF-8"
    return f"it looks like {named[0]}; convert the file with: iconv -f {named[0]} -t UTF-8"


def is_garbled(text: str) -> bool:
    """Whether a text was written in one encoding and read in another, as far as can be told."""
    if text.isascii():
        return False
    letters = _LETTERS.findall(text)
    if _CONTROLS.search(text) or 2 * len(_LATIN1.findall(text)) > len(letters) > 0:
        return True
    runs = _BEYOND_ASCII.findall(text)
    return any(2 * sum(_was_utf8(run, encoding) for run in runs) > len(runs) for encoding in _READ_AS)


def _encodings(content: bytes) -> list[str]:
    """The most likely ones, if they cannot be told apart."""
    try:
        from charset_normalizer import from_bytes
    except ImportError:  # it comes with `requests`
        return []
    matches = [
        match
        for match in from_bytes(content, cp_isolation=list(_ENCODINGS))
        if (match.encoding in _EAST_ASIAN and match.chaos <= _MOST)
        or (match.encoding in _ENCODINGS and match.encoding not in _EAST_ASIAN and match.coherence >= _LEAST)
    ]
    if not matches:
        return []
    best = matches[0]
    others = [
        match
        for match in matches[1:]
        if match.chaos <= best.chaos + (_LATIN_CHAOS if {match.encoding, best.encoding} <= {*_LATIN} else _CHAOS)
        and match.coherence >= _COHERENCE * best.coherence
        and str(match) != str(best)
    ]
    return sorted(map(_usual, [best, *others][:_NAMED]), key=_ENCODINGS.index)


def _usual(match: Any) -> str:
    """The most usual one of all in which the text is the same."""
    return next(encoding for encoding in _ENCODINGS if encoding in match.could_be_from_charset)


def _up_to(size: int, lines: list[bytes]) -> bytes:
    """Whole lines, for a character that is cut is none in any encoding; the first at least in part."""
    taken = b""
    for line in lines:
        if taken and len(taken) + len(line) > size:
            break
        taken += line
    return taken[: 4 * size]


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _was_utf8(run: str, encoding: str) -> bool:
    """Whether characters are UTF-8 that was read as if it were in another encoding."""
    try:
        return len(b"".join(_bytes_of(run, encoding)).decode()) < len(run)
    except (UnicodeDecodeError, UnicodeEncodeError):
        return False


def _bytes_of(run: str, encoding: str) -> Iterator[bytes]:
    for character in run:
        try:
            yield character.encode(encoding)
        except UnicodeEncodeError:  # which no character stands for was read as a control character
            yield character.encode("latin-1")
