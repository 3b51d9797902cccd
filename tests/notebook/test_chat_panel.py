"""The chat's panel, without a browser: what it shows, and what its box and buttons do."""

from dataclasses import replace
from typing import Any

import ipywidgets
import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.inference.turns import ChatSnapshot, Turn
from dedloc_kit.notebook.chat_panel import ChatPanel
from tests.notebook.chats import FakeChat, snapshot
from tests.notebook.test_panel import HOSTILE, buttons_of, page_of, widgets_of, words_of


def shown(now: ChatSnapshot, controls: FakeChat | None = None) -> ChatPanel:
    panel = ChatPanel(controls or FakeChat())
    panel.show(now)
    return panel


def box_of(panel: ChatPanel) -> Any:
    (box,) = [widget for widget in widgets_of(panel.widget) if isinstance(widget, ipywidgets.Textarea)]
    return box


def test_one_sees_the_talk_who_answers_and_how_fast() -> None:
    words = words_of(shown(snapshot()))
    assert "hello hi there and now? no idea (stopped)" in words
    assert "answered by Rabi (layers 0:2), רבי (layers 2:4) 4.0 tokens/s" in words


def test_before_the_first_message_it_says_who_sees_what_is_typed() -> None:
    words = words_of(shown(snapshot(turns=(), route=())))
    assert "The computers that answer see what you type" in words
    assert "in a form from which the text can be recovered" in words


def test_what_the_model_no_longer_sees_is_marked() -> None:
    turns = tuple(Turn(f"question {number}", "answer") for number in range(4))
    words = words_of(shown(snapshot(turns=turns, forgotten=2)))
    assert "question 1 answer The model no longer sees the first 2 messages: the text has grown too long. " in words


@pytest.mark.parametrize("part", ["asked", "answer", "note", "name", "model", "text"])
def test_what_others_wrote_is_text_not_markup(part: str) -> None:
    now = snapshot()
    if part == "name":
        now = replace(now, route=tuple(replace(each, name=HOSTILE) for each in now.route))
    elif part in ("model", "text"):
        now = snapshot(**{part: HOSTILE})
    else:
        texts = {"asked": "a", "answer": "b", "note": "c", part: HOSTILE}
        now = replace(now, turns=2 * (Turn(texts["asked"], texts["answer"], texts["note"]),))
    page = page_of(shown(now))
    assert "<img" not in page
    assert "&lt;img src=x" in page


def test_a_message_is_sent_by_the_button_and_by_enter_and_leaves_the_box() -> None:
    chat = FakeChat()
    panel = shown(snapshot(turns=()), chat)
    box_of(panel).value = "two\nlines"
    assert chat.said == []
    buttons_of(panel)["Send"].click()
    assert (chat.said, box_of(panel).value) == (["two\nlines"], "")
    box_of(panel).value = "too early\n"
    assert len(chat.said) == 1
    panel.show(snapshot())
    box_of(panel).value = "next\n"
    assert chat.said[1:] == ["next"]
    panel.show(snapshot())
    box_of(panel).value = " \n"
    assert len(chat.said) == 2
    chat.go_on.set()


def test_what_was_typed_stays_if_somebody_else_asks_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = FakeChat()
    panel = shown(snapshot(), chat)

    def refuse(text: str) -> Any:
        raise UserError("wait")

    monkeypatch.setattr(chat, "say", refuse)
    box_of(panel).value = "mine"
    buttons_of(panel)["Send"].click()
    assert box_of(panel).value == "mine"


@pytest.mark.parametrize(
    ("phase", "send", "stop"),
    [
        ("loading", False, False),
        ("ready", True, False),
        ("answering", False, True),
        ("stopping", False, False),
        ("failed", True, False),
        ("over", False, False),
    ],
)
def test_buttons_are_live_only_where_they_make_sense(phase: Any, send: bool, stop: bool) -> None:
    buttons = buttons_of(shown(snapshot(phase=phase)))
    assert (not buttons["Send"].disabled, not buttons["Stop"].disabled) == (send, stop)


def test_the_stop_button_stops() -> None:
    chat = FakeChat()
    panel = shown(snapshot(phase="answering"), chat)
    buttons_of(panel)["Stop"].click()
    assert chat.stops == 1


def test_without_buttons_it_says_how_to_stop() -> None:
    panel = ChatPanel(None)
    panel.show(snapshot())
    assert not buttons_of(panel)
    assert "The stop button of this cell (■) stops an answer" in words_of(panel)


def test_only_what_changed_is_sent() -> None:
    panel = shown(snapshot())
    sent: list[str] = []
    for widget in widgets_of(panel.widget):
        widget.observe(lambda change: sent.append(change["new"]))
    turns = snapshot().turns
    panel.show(snapshot(turns=(turns[0], Turn("and now?", "no idea", "stopped", 6, 1.25))))
    assert sent == []
    panel.show(snapshot(turns=(turns[0], Turn("and now?", "no idea yet", "stopped", 6, 1.25))))
    assert len(sent) == 1
    assert "hi there" not in sent[0], "the turns before are not sent again"
