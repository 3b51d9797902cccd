"""Numbers as people read them, and names that they chose themselves."""

import ipaddress
import re
import unicodedata
from collections.abc import Sequence

_JOINERS = "\u200c\u200d"  # Bengali, Persian and family emoji are not written right without them
_HOST = re.compile(
    r"/(?:ip4|ip6|dns4|dns6|dns)/[^/\s]+"  # as libp2p writes addresses
    r"|\b\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|(?<![\w:])(?P<colons>[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f]*)\b"
)


def count(number: int, one: str) -> str:
    """`1,234 samples`, `1 sample`."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def some(things: Sequence[str], most: int) -> str:
    """`a, b and 3 more`."""
    return ", ".join(things[:most]) + (f" and {len(things) - most} more" if len(things) > most else "")


def rate(value: float) -> str:
    """`0.02`, `3.4`, and from a hundred on without decimals."""
    if 0 < value < 0.095:
        return f"{value:.1g}"
    return f"{value:,.1f}" if value < 99.95 else f"{value:,.0f}"


def size(number: float) -> str:
    """Bytes in the largest sensible unit: `8.5 kB`, `12.3 MB`, `850 MB`, `1.8 GB`."""
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= 0.9995 * length:
            return f"{rate(number / length)} {unit}"
    return f"{number:.0f} B"


def share(part: float) -> str:
    """A part of one, in per cent, in one piece; a small one is not nothing."""
    if 0 < part < 0.001:
        return "<\u00a00.1\u00a0%"
    percent = f"{100 * part:.0f}" if part >= 0.0995 else f"{100 * part:.1f}"
    return f"{percent}\u00a0%"


def duration(seconds: float) -> str:
    """`42 s`, `5 min`, `2 h 5 min`, `3 days 4 h`; begun ones do not count."""
    if seconds < 60:
        return f"{int(seconds)} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{count(days, 'day')} {hours} h"


def printable(text: str) -> str:
    """A text as a terminal may get it: without controls other than the ends of lines, and without what is invisible or
    would turn around the text beside it."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in _JOINERS or c in "\n\t" or unicodedata.category(c)[0] != "C")


def without_hosts(text: str) -> str:
    """A text that all may read: what it says of a peer's address, as messages of errors do, is left out."""
    return _HOST.sub(_without_host, text)


_PLACES = re.compile(r"\S*[/\\](?:.*[/\\])?\S*")


def for_organizer(reason: str, most: int) -> str:
    """What went wrong on a volunteer's machine, as its organizer may read it: without hosts, and without what may be a
    path, which tells of its owner. A path may hold spaces, so all between
    the first and the last slash is left out."""
    told = " ".join(_PLACES.sub("…", without_hosts(" ".join(reason.split()))).split())
    return visible(told, most) if told else ""


def _without_host(found: re.Match[str]) -> str:
    if found["colons"]:  # a time of the day has them too
        try:
            ipaddress.IPv6Address(found["colons"])
        except ValueError:
            return found[0]
    return "…"


def visible(text: str, most: int = 64) -> str:
    """A name or a message as it may stand beside other text, `anonymous` if nothing of it can be seen.

    Without controls, which XML forbids, and without what is invisible or would turn around the text beside it.
    """
    shown = "".join(c for c in text if c in _JOINERS or unicodedata.category(c)[0] != "C" or c.isspace())
    shown = " ".join(shown[:most].split())
    return shown if any(unicodedata.category(c)[0] not in "CMZ" for c in shown) else "anonymous"
