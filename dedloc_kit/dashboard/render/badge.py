"""A badge for a README or a blog: the run's name, and how far it is."""

from html import escape

_COLOURS = {"training": "#1b7257", "finished": "#1b7257", "coordinator lost": "#b9561b", "paused": "#8a6d1f"}
_OTHERWISE = "#61665d"
_HEIGHT, _PAD = 20, 7
_NARROW, _WIDE = "fijlrt .,:;|!'()[]", "mwMW%"


def badge(name: str, status: str, step: int) -> str:
    """An SVG in the usual form of badges, 20 pixels high."""
    text = f"{status} · step {step:,}" if step else status
    left, right = _width(name) + 2 * _PAD, _width(text) + 2 * _PAD
    colour = _COLOURS.get(status, _OTHERWISE)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" role="img" '
        f'aria-label="{escape(name)}: {escape(text)}"><title>{escape(name)}: {escape(text)}</title>'
        f'<clipPath id="r"><rect width="{left + right}" height="{_HEIGHT}" rx="4"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="{_HEIGHT}" fill="#2b312c"/>'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{colour}"/></g>'
        '<g fill="#fff" font-family="Verdana, DejaVu Sans, Geneva, sans-serif" font-size="11">'
        f"{_text(name, _PAD)}{_text(text, left + _PAD)}</g></svg>\n"
    )


def _text(text: str, x: int) -> str:
    """The viewer's font may be another one: its letters are set to the width that we reckoned with."""
    return f'<text x="{x}" y="14" textLength="{_width(text)}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'


def _width(text: str) -> int:
    """About that of Verdana with 11 pixels."""
    return round(sum(4.2 if letter in _NARROW else 10.3 if letter in _WIDE else 6.9 for letter in text))
