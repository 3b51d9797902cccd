"""A thank-you to one volunteer: what it says, and its picture in SVG, which a browser can print."""

from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from dedloc_kit.display.human import count, duration, share, size

WIDTH, HEIGHT = 297.0, 210.0
"""Millimetres: A4, lying."""
PAPER, INK, MUTED, LINE, GREEN = "#fffefa", "#1f2420", "#61665d", "#d8d2c0", "#1b7257"
_SERIF = "Iowan Old Style, Palatino Linotype, Palatino, Georgia, Noto Serif, Times, serif"
_SANS = "Helvetica, Arial, Noto Sans, sans-serif"
_POINT = 25.4 / 72
"""Millimetres."""


@dataclass(frozen=True)
class Certificate:
    """What is known of a volunteer's part in a run; times are seconds since 1970."""

    run: str
    run_id: str
    peer: str
    name: str
    """As it may be shown; `anonymous` stays so."""
    samples: int
    part: float
    """Of all samples, from 0 to 1."""
    steps: int
    seconds: float | None
    """Time given, if it is known."""
    since: float
    until: float
    address: str
    """Where everybody can check it."""
    carried: int = 0
    """Bytes over a line that it lent."""
    answered: int = 0
    """Tokens by experts that it hosted."""


@dataclass(frozen=True)
class Line:
    """A line of text, centred at `x` with its foot at `y`, both in millimetres."""

    x: float
    y: float
    text: str
    points: float
    colour: str = INK
    serif: bool = False
    spacing: float = 0.0
    """Between letters, in points."""
    link: str = ""
    """Where it leads."""


def lines(certificate: Certificate) -> list[Line]:
    """All that is written on it but the name."""
    middle = WIDTH / 2
    days = [_day(certificate.since), _day(certificate.until)]
    period = f"from {days[0]} to {days[1]}" if days[0] != days[1] else f"on {days[0]}"
    lent = "line" if certificate.carried and not certificate.samples and not certificate.answered else "computer"
    facts = _facts(certificate)
    check = f"to be checked at {certificate.address}"
    gap, points = 216 / max(1, len(facts)), min(20, 86 / max(1, len(facts)))
    found = [
        Line(middle, 43, "THANK YOU", 13, GREEN, spacing=5),
        Line(middle, 94, f"lent their {lent} to train", 13, MUTED),
        Line(middle, 108, certificate.run, min(26, 1000 / len(certificate.run)), serif=True),
        Line(middle, 118, f"a model that volunteers made together over the Internet, {period}", 11, MUTED),
        Line(middle, 176, f"run {certificate.run_id}", 8.5, MUTED),
        Line(middle, 181, f"peer {certificate.peer}", 8.5, MUTED),
        Line(middle, 187, check, min(8.5, 1000 / len(check)), GREEN, link=certificate.address),
    ]
    for number, (value, what) in enumerate(facts):
        x = middle + gap * (number - (len(facts) - 1) / 2)
        found += [Line(x, 143, value, points, serif=True), Line(x, 149.5, what, 9.5, MUTED)]
    return found


def _facts(certificate: Certificate) -> list[tuple[str, str]]:
    """What was given, and what that is; of each kind as far as there is any, for they are never added up."""
    facts = []
    if certificate.samples:
        facts += [(f"{certificate.samples:,}", "samples computed"), (share(certificate.part), "of all samples")]
    if certificate.answered:
        facts.append((f"{certificate.answered:,}", "tokens answered for others"))
    if certificate.carried:
        facts.append((size(certificate.carried), "carried for others"))
    if certificate.seconds:
        facts.append((duration(certificate.seconds), "of computing time" if certificate.samples else "of time"))
    if certificate.steps:
        facts.append((f"{certificate.steps:,}", "global steps helped"))
    return facts


def name_points(name: str) -> float:
    """The size at which a name fits between the margins, however wide its letters are."""
    return min(40.0, 620 / max(1, len(name)))


def certificate_svg(certificate: Certificate) -> str:
    """The picture; it needs no style of its own, so that the page's policy lets it be opened by itself."""
    gave = f"{count(certificate.samples, 'sample')} for {certificate.run}" if certificate.samples else certificate.run
    title = f"A certificate for {certificate.name}: {gave}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH:g}mm" height="{HEIGHT:g}mm" '
        f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" text-anchor="middle"><title>{escape(title)}</title>',
        f'<rect width="100%" height="100%" fill="{PAPER}"/>',
    ]
    for inset, colour, width in ((9, LINE, 0.3), (11, GREEN, 0.7)):
        parts.append(
            f'<rect x="{inset}" y="{inset}" width="{WIDTH - 2 * inset:g}" height="{HEIGHT - 2 * inset:g}" rx="2" '
            f'fill="none" stroke="{colour}" stroke-width="{width}"/>'
        )
    parts.append(_text(Line(WIDTH / 2, 74, certificate.name, name_points(certificate.name), serif=True)))
    parts.append(f'<path d="M{WIDTH / 2 - 45} 82H{WIDTH / 2 + 45}" stroke="{LINE}" stroke-width="0.4"/>')
    for line in lines(certificate):
        text = _text(line)
        parts.append(f'<a href="{escape(line.link)}">{text}</a>' if line.link else text)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(line: Line) -> str:
    spacing = f' letter-spacing="{line.spacing * _POINT:.2f}"' if line.spacing else ""
    return (
        f'<text x="{line.x:g}" y="{line.y:g}" font-family="{_SERIF if line.serif else _SANS}" '
        f'font-size="{line.points * _POINT:.2f}" fill="{line.colour}"{spacing}>{escape(line.text)}</text>'
    )


def _day(time: float) -> str:
    day = _moment(time)
    return f"{day.day} {day:%B %Y}"


def _moment(time: float) -> datetime:
    """A time as a date; one that no calendar has becomes the year 3058."""
    return datetime.fromtimestamp(min(time, 2**35), UTC)
