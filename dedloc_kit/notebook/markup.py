"""The parts of the panel as HTML, each a pure function of the snapshot. What others wrote is escaped here."""

from html import escape
from urllib.parse import urlsplit

from dedloc_kit.notebook.chart import loss_chart
from dedloc_kit.session.snapshot import CANNOT, Phase, Snapshot


def head(snapshot: Snapshot) -> str:
    """What the run is and for whom, and where to see more."""
    about = f'<div class="about">{escape(snapshot.about)}</div>' if snapshot.about else ""
    links = " ".join(filter(None, (_link(url, label) for label, url in snapshot.links)))
    title = f'<span class="title">{escape(snapshot.title or "Joining")}</span>'
    return f'<div class="head">{title}<span class="links">{links}</span></div>{about}'


def state(snapshot: Snapshot) -> str:
    """What happens now: a live region, for screen readers."""
    text = f"<b>{escape(snapshot.text)}</b>"
    if snapshot.phase is Phase.FAILED:
        text = f"<b>{CANNOT}</b> {escape(snapshot.text)}"
    return (
        f'<div class="state" role="status" aria-live="polite"><span class="dot {snapshot.phase}"></span>'
        f"<div>{text}</div></div>"
    )


def progress(snapshot: Snapshot) -> str:
    """How far it is, in words."""
    now = snapshot.progress
    if now is None:
        return ""
    return f'<div class="reach"><span>{_capital(now.text)}</span><span class="quiet">{escape(now.left)}</span></div>'


def bar(snapshot: Snapshot) -> str:
    """The same as a bar, my part first. One that moves by itself has the same HTML each time, or it would jump."""
    now = snapshot.progress
    if now is None:
        return ""
    begin = '<div class="bar" role="progressbar" aria-label="progress"'
    if now.fraction is None:
        return f'{begin}><i class="moving"></i></div>'
    whole = min(1.0, max(0.0, now.fraction))
    mine = whole if now.mine is None else min(whole, max(0.0, now.mine))
    return (
        f'{begin} aria-valuemin="0" aria-valuemax="100" aria-valuenow="{100 * whole:.0f}">'
        f'<i class="mine" style="width:{100 * mine:.2f}%"></i>'
        f'<i class="others" style="width:{100 * (whole - mine):.2f}%"></i></div>'
    )


def notes(snapshot: Snapshot) -> str:
    """What the organizer says, what the newest step meant, thanks. Isolated, for text from right to left."""
    return "".join(
        f'<div class="note"><b><bdi>{escape(label)}</bdi>:</b> <bdi>{escape(text)}</bdi></div>'
        for label, text in snapshot.notes
    )


def facts(snapshot: Snapshot) -> str:
    """As whom I take part, what I gave, and what my machine does."""
    found = "".join(
        f'<div><div class="quiet small">{_capital(label)}</div><b><bdi>{escape(value)}</bdi></b></div>'
        for label, value in snapshot.facts
    )
    return f'<div class="facts">{found}</div>' if found else ""


def chart(snapshot: Snapshot) -> str:
    """The loss, where there is one or will be."""
    return "" if snapshot.losses is None else loss_chart(snapshot.losses)


def warnings(snapshot: Snapshot, buttons: bool) -> str:
    """Warnings, and how to leave where there are no buttons."""
    found = [f'<div class="note warning">{_capital(text)}</div>' for text in snapshot.warnings]
    if not buttons and not snapshot.phase.over and snapshot.phase is not Phase.LEAVING:
        found.append(
            '<div class="quiet small">To leave, stop this cell with its stop button (■). What you have finished '
            "counts, and you can come back at any time.</div>"
        )
    return "".join(found)


def details(snapshot: Snapshot) -> str:
    """A fold with what somebody who helps needs to know."""
    if not snapshot.details:
        return ""
    return (
        f'<details><summary>Details for support</summary><pre tabindex="0">{escape(snapshot.details)}</pre></details>'
    )


def _capital(text: str) -> str:
    """Escaped, as the beginning of a line."""
    return escape(text[:1].upper() + text[1:])


def _link(url: str, words: str) -> str:
    """Only to the web: a `javascript:` address would run in the notebook."""
    try:
        safe = urlsplit(url).scheme in ("http", "https")
    except ValueError:
        safe = False
    if not safe:
        return ""
    return f'<a href="{escape(url)}" target="_blank" rel="noopener noreferrer">{escape(words)} ↗</a>'
