"""What people paste: an address, a code or a key may hold a character that nobody sees."""

import re
import string
import unicodedata

from dedloc_kit.errors import UserError

_OF_NAMES = "\u200c\u200d"  # Bengali, Persian and family emoji are not written right without them

_OF_TOKENS = f"{string.ascii_letters}{string.digits}-._~+/"
"""https://www.rfc-editor.org/rfc/rfc6750#section-2.1, without the equals signs of base64."""


def unseen(text: str) -> str:
    """The first character in a text that is not seen, or that an editor has put there, in words; empty if none is."""
    # Joiners belong to letters that ASCII does not have.
    joiners = "" if text.translate(dict.fromkeys(map(ord, _OF_NAMES))).isascii() else _OF_NAMES
    return next((_named(c) for c in text if c == "…" or (_hidden(c) and c not in joiners)), "")


def check_pasted(what: str, text: str) -> None:
    """Raise UserError for an address, a name or a code with a character that is not seen, or a space around it."""
    if found := unseen(text) or (_named(" ") if text != text.strip() else ""):
        raise UserError(f"{what} holds a character that does not belong there: {found}; copy it again, or type it")


def why_no_token(text: str) -> str:
    """Why a text cannot be a token of the Hugging Face Hub, in words; empty if it may be one."""
    odd = next((c for c in text if c not in _OF_TOKENS), "")
    if odd:
        return f"it holds the character {_named(odd)}"
    if text and not re.fullmatch(r"[^.]+(\.[^.]+)*", text):
        return "dots stand where a part of it is missing"
    return ""


def _hidden(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or (c.isspace() and c != " ")


def _named(c: str) -> str:
    return f"{unicodedata.name(c, 'CONTROL').lower()} (U+{ord(c):04X})"
