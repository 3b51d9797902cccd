"""What people paste: an address, a code or a key may hold a character that nobody sees."""

import re
import unicodedata

from dedloc_kit.errors import UserError

_OF_NAMES = "\u200c\u200d"  # Bengali, Persian and family emoji are not written right without them


def unseen(text: str) -> str:
    """The first character in a text that is not seen, or that an editor has put there, in words; empty if none is."""
    return next((_named(c) for c in text if c == "…" or (_hidden(c) and c not in _OF_NAMES)), "")


def check_pasted(what: str, text: str) -> None:
    """Raise UserError for an address, a name or a code with a character that is not seen."""
    if found := unseen(text):
        raise UserError(f"{what} holds a character that does not belong there: {found}; copy it again, or type it")


def why_no_token(text: str) -> str:
    """Why a text cannot be a token of the Hugging Face Hub, in words; empty if it may be one."""
    odd = next((c for c in text if not "!" <= c <= "~"), "")
    if odd:
        return f"it holds the character {_named(odd)}"
    if text and not re.fullmatch(r"[^.]+(\.[^.]+)*", text):
        return "dots stand where a part of it is missing"
    return ""


def _hidden(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") or (c.isspace() and c != " ")


def _named(c: str) -> str:
    return f"{unicodedata.name(c, 'CONTROL').lower()} (U+{ord(c):04X})"
