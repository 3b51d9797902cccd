"""The parts of the chat's panel as HTML, each a pure function of the snapshot. What others wrote is escaped here."""

from html import escape

from dedloc_kit.display.human import count, rate
from dedloc_kit.inference.turns import ChatSnapshot, Turn


def head(chat: ChatSnapshot) -> str:
    """With whom one talks."""
    return f'<div class="head"><span class="title">{escape(chat.model or "Chat")}</span></div>'


def warning(chat: ChatSnapshot) -> str:
    """Who else sees what is typed."""
    return f'<div class="note warning">{escape(chat.warning)}</div>' if chat.warning else ""


def state(chat: ChatSnapshot) -> str:
    """What goes on now: a live region, for screen readers."""
    remark = (
        f'<div class="quiet small">{escape(chat.remark[:1].upper() + chat.remark[1:])}.</div>' if chat.remark else ""
    )
    return (
        f'<div class="state" role="status" aria-live="polite"><span class="dot {chat.phase}"></span>'
        f"<div><b>{escape(chat.text[:1].upper() + chat.text[1:])}</b>{remark}</div></div>"
    )


def past(chat: ChatSnapshot) -> str:
    """The turns before the last one."""
    lines = [_turn(turn) for turn in chat.turns[:-1]]
    if chat.forgotten:
        seen = f"The model no longer sees the first {count(chat.forgotten, 'message')}: the text has grown too long."
        lines.insert(chat.forgotten, f'<div class="quiet small">{seen}</div>')
    return f'<div class="talk">{"".join(lines)}</div>' if lines else ""


def latest(chat: ChatSnapshot) -> str:
    """The last turn, as it grows."""
    return f'<div class="talk">{_turn(chat.turns[-1])}</div>' if chat.turns else ""


def facts(chat: ChatSnapshot) -> str:
    """Who answers, and how fast."""
    found = []
    if chat.route:
        who = ", ".join(f"<bdi>{escape(each.name)}</bdi> (layers {each.layers})" for each in chat.route)
        found.append(f"answered by {who}")
    if chat.turns and (speed := chat.turns[-1].speed):
        found.append(f"{rate(speed)} tokens/s")
    return f'<div class="facts quiet small">{"".join(f"<span>{fact}</span>" for fact in found)}</div>' if found else ""


def _turn(turn: Turn) -> str:
    asked = f'<div class="asked" dir="auto">{escape(turn.asked)}</div>'
    why = f'<span class="why"> ({escape(turn.note)})</span>' if turn.note else ""
    answer = f'<div class="answer" dir="auto">{escape(turn.answer)}{why}</div>' if turn.answer or why else ""
    return asked + answer
