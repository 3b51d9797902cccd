"""Texts that are not UTF-8."""

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
_NAMED = 3
"""At most."""
_CHAOS, _COHERENCE = 0.1, 0.1
"""What is worse is in no encoding of East Asia, or in none of the others, in which any bytes may be."""


def which(content: bytes) -> str:
    """In words what to do with text that is not UTF-8; the likeliest encodings are named.

    :param content: the beginning of a file
    """
    lines = content.splitlines(keepends=True)
    odd = b""
    for line in lines[:-1] or lines:  # whole ones, for a character that is cut is none in any encoding
        if line.decode(errors="ignore").encode() != line:
            if odd and len(odd) + len(line) > _LOOKED_AT:
                break
            odd += line[: 4 * _LOOKED_AT]
    named = [encoding.upper().replace("_", "-") for encoding in _encodings(odd)]
    if not named:
        return "find out its encoding, and convert it with: iconv -f ENCODING -t UTF-8"
    return f"it may be {' or '.join(named)}; look at what becomes of it with: iconv -f {named[0]} -t UTF-8"


def _encodings(content: bytes) -> list[str]:
    try:
        from charset_normalizer import from_bytes
    except ImportError:  # it comes with `requests`
        return []
    found: Any = from_bytes(content, cp_isolation=list(_ENCODINGS)) if content else []
    likely = (each.chaos <= _CHAOS if each.encoding in _EAST_ASIAN else each.coherence >= _COHERENCE for each in found)
    # The most usual one of all in which the text is the same.
    usual = (next(name for name in _ENCODINGS if name in each.could_be_from_charset) for each in found)
    return [name for name, is_likely in zip(usual, likely, strict=True) if is_likely][:_NAMED]
