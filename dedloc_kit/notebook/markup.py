"""The parts of the panel as HTML, each a pure function of the snapshot. What others wrote is escaped here."""

from collections.abc import Iterable
from html import escape
from urllib.parse import urlsplit

from dedloc_kit.display.human import count, duration, rate, share, size
from dedloc_kit.session.snapshot import Snapshot

_MAX_WARNINGS = 3


def head(snapshot: Snapshot) -> str:
    """What the run is and for whom, and where to see more."""
    about = f'<div class="about">{escape(snapshot.about)}</div>' if snapshot.about else ""
    title = f'<span class="title">{escape(_run_name(snapshot))}</span>'
    links = f"{_link(snapshot.url, 'see the run live')} {_link(snapshot.own_page, 'your page')}".strip()
    return f'<div class="head">{title}<span>{links}</span></div>{about}'


def state(snapshot: Snapshot) -> str:
    """What goes on now: a live region, for screen readers."""
    text = f"<b>{escape(snapshot.text[:1].upper() + snapshot.text[1:])}</b>"
    problem = f" {escape(snapshot.problem)}" if snapshot.problem else ""
    return (
        f'<div class="state" role="status" aria-live="polite"><span class="dot {snapshot.phase}"></span>'
        f"<div>{text}{problem}</div></div>"
    )


def announcement(snapshot: Snapshot) -> str:
    """What the organizer tells everyone."""
    if not snapshot.announcement:
        return ""
    return (
        f'<div class="note" role="status"><b>From the organizer:</b> <bdi>{escape(snapshot.announcement)}</bdi></div>'
    )


def batch(snapshot: Snapshot) -> str:
    """How full the global batch is, and how much of it is mine."""
    if snapshot.over or not snapshot.global_batch:
        return ""
    whole = snapshot.global_batch
    everyone = min(snapshot.batch_samples, whole)
    mine = min(snapshot.my_batch_samples, everyone)
    steps = snapshot.under_way
    if snapshot.step >= snapshot.total_steps:
        steps = f"all {snapshot.total_steps:,} steps are done"
    words = f"{everyone:,} of {count(whole, 'sample')}"
    return (
        f'<div class="row"><span>Together {words}, <span class="accent">{mine:,} by you</span></span>'
        f'<span class="quiet">{steps}</span></div>'
        f'<div class="bar" role="progressbar" aria-label="samples toward the next step" aria-valuemin="0" '
        f'aria-valuemax="{whole}" aria-valuenow="{everyone}">'
        f'<i class="mine" style="width:{100 * mine / whole:.2f}%"></i>'
        f'<i class="others" style="width:{100 * (everyone - mine) / whole:.2f}%"></i></div>'
        '<div class="quiet small">Each time the bar is full, everyone’s work makes the model one step better.</div>'
    )


def figures(snapshot: Snapshot) -> str:
    """My samples, share, rank and time."""
    if snapshot.phase == "failed" and not snapshot.session_samples:
        return ""
    if snapshot.carried is not None:
        return _figures((("Your line carried", size(snapshot.carried), "this time"), _time_given(snapshot)))
    rank, part = snapshot.rank, snapshot.share
    total = max(snapshot.total_samples or 0, snapshot.session_samples)
    cells = (
        ("Your samples", f"{snapshot.session_samples:,}", f"{total:,} in all"),
        _time_given(snapshot),
        ("Your share", "–" if part is None else escape(share(part)), "of what all gave"),
        ("Your rank", "–" if rank is None else f"{rank:,}", _among(snapshot.contributors)),
    )
    return _figures(cells)


def _time_given(snapshot: Snapshot) -> tuple[str, str, str]:
    return "Time given", duration(snapshot.seconds_given), "this time"


def _figures(cells: Iterable[tuple[str, str, str]]) -> str:
    return (
        '<div class="figures">'
        + "".join(
            f'<div><div class="small">{name}</div><div class="number">{value}</div>'
            f'<div class="quiet small">{note}</div></div>'
            for name, value, note in cells
        )
        + "</div>"
    )


def machine(snapshot: Snapshot) -> str:
    """As whom I take part, who else does, and what my machine gives."""
    facts = []
    if snapshot.name:
        how = "anonymously, as" if snapshot.anonymous else "as"
        facts.append(f"you take part {how} {_name(snapshot)}")
    if snapshot.peers and not snapshot.over:
        facts.append(f"{count(snapshot.peers, 'volunteer')} training now")
    if snapshot.device:
        facts.append(f"your machine: {escape(snapshot.device)}")
    if snapshot.hosted is not None and not snapshot.over:
        kept, copies = snapshot.hosted
        holds = f"{count(kept, 'expert')} of the model and copies of {copies:,} more"
        facts.append(f"your machine holds {holds}, which answered {count(snapshot.answered, 'token')} for others")
    if snapshot.samples_per_second > 0:
        facts.append(f"{rate(snapshot.samples_per_second)} samples/s")
    if snapshot.memory_bytes:
        facts.append(f"{size(snapshot.memory_bytes)} of memory")
    if snapshot.sent_bytes_per_second or snapshot.received_bytes_per_second:
        sent, received = size(snapshot.sent_bytes_per_second), size(snapshot.received_bytes_per_second)
        facts.append(f"sends {sent}/s, receives {received}/s")
    return f'<div class="facts quiet small">{"".join(f"<span>{fact}</span>" for fact in facts)}</div>'


def notes(snapshot: Snapshot, buttons: bool) -> str:
    """Thanks, warnings, and how to leave where there are no buttons."""
    if snapshot.over:
        return _thanks(snapshot)
    found = [f'<div class="note warning">{escape(text)}</div>' for text in snapshot.warnings[-_MAX_WARNINGS:]]
    if not buttons and snapshot.phase != "leaving":
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
        "<details><summary>Details for whoever helps you</summary>"
        f'<pre tabindex="0">{escape(snapshot.details)}</pre></details>'
    )


def _thanks(snapshot: Snapshot) -> str:
    if snapshot.carried:
        gave = f"{size(snapshot.carried)} over your line, in {duration(snapshot.seconds_given)}"
        return f'<div class="note"><b>Thank you, {_name(snapshot)}!</b> You carried {gave}.</div>'
    if not snapshot.session_samples:
        if snapshot.phase == "failed":
            return ""
        return '<div class="note">Thank you for coming. No sample was finished this time.</div>'
    hosted = f" and {count(snapshot.answered, 'token')} answered for others" if snapshot.answered else ""
    gave = f"{count(snapshot.session_samples, 'sample')}{hosted} in {duration(snapshot.seconds_given)} of computing"
    total = max(snapshot.total_samples or 0, snapshot.session_samples)
    so_far = f" With your earlier visits that is {count(total, 'sample')}." if total > snapshot.session_samples else ""
    if snapshot.share:
        so_far += f" That is {escape(share(snapshot.share))} of all that everyone has given."
    back = " To come back, run the cell again." if snapshot.phase == "left" else ""
    links = (_link(snapshot.url, "see how the model is doing"), _link(snapshot.own_page, "your page and certificate"))
    where = " ".join(filter(None, links))
    kept = f'<div class="quiet small">{escape(snapshot.next_session)}</div>' if snapshot.next_session else ""
    return f'<div class="note"><b>Thank you, {_name(snapshot)}!</b> You gave {gave}.{so_far}{back} {where}</div>{kept}'


def _name(snapshot: Snapshot) -> str:
    """Isolated, for names that are written from right to left."""
    return f"<bdi>{escape(snapshot.name)}</bdi>"


def _among(contributors: int | None) -> str:
    return "known soon" if not contributors else f"of {count(contributors, 'volunteer')}"


def _run_name(snapshot: Snapshot) -> str:
    """The name without the fingerprint, which tells a volunteer nothing."""
    return snapshot.run_id.rpartition("-")[0] or snapshot.run_id or "Joining"


def _link(url: str | None, words: str) -> str:
    """Only to the web: a `javascript:` address would run in the notebook."""
    try:
        safe = url is not None and urlsplit(url).scheme in ("http", "https")
    except ValueError:
        safe = False
    if not safe:
        return ""
    return f'<a href="{escape(url or "")}" target="_blank" rel="noopener noreferrer">{words} ↗</a>'
