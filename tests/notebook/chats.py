"""A chat that answers nothing by itself, and chats to show."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dedloc_kit.blocks.plans.plan import LayerRange
from dedloc_kit.inference.turns import WARNING, Answerer, ChatSnapshot, Turn, messages_of


def snapshot(**changed: Any) -> ChatSnapshot:
    usual: dict[str, Any] = {
        "phase": "ready",
        "text": "ready",
        "model": "toy",
        "warning": WARNING,
        "turns": (Turn("hello", "hi there", "", 9, 2.0), Turn("and now?", "no idea", "stopped", 5, 1.0)),
        "route": (Answerer("Rabi", LayerRange(0, 2)), Answerer("רבי", LayerRange(2, 4))),
    }
    return ChatSnapshot(**{**usual, **changed})


class FakeChat:
    """Answers each message with its capitals, in two parts, the second one when `go_on` is set or it is stopped.

    :ivar slow: it does not stop
    :ivar event: makes what is set after an answer
    """

    slow = False
    event: Callable[[], threading.Event] = threading.Event

    def __init__(self) -> None:
        self.tried, self.over, self.go_on = threading.Event(), threading.Event(), threading.Event()
        self.tried.set()
        self.now = snapshot(turns=(), route=())
        self.said: list[str] = []
        self.stops = 0

    def snapshot(self) -> ChatSnapshot:
        return self.now

    def say(self, text: str) -> threading.Event:
        self.said.append(text)
        turns = (*self.now.turns, Turn(text, text[:2].upper()))
        self.now = replace(self.now, phase="answering", text="the model answers", turns=turns)
        answered = self.event()
        threading.Thread(target=self._finish, args=(answered,)).start()
        return answered

    def system(self, text: str) -> None:
        self.now = replace(self.now, system=text)

    def new(self) -> None:
        self.now = replace(self.now, turns=())

    def tell(self, text: str) -> None:
        self.now = replace(self.now, text=text)

    def messages(self) -> list[dict[str, str]]:
        return messages_of(self.now.turns, self.now.system)

    def stop(self) -> None:
        self.stops += 1
        if not self.slow:
            self.go_on.set()

    def close(self) -> None:
        self.now = replace(self.now, phase="over", text="this chat is over")
        self.over.set()

    def _finish(self, answered: threading.Event) -> None:
        assert self.go_on.wait(60)
        *before, turn = self.now.turns
        note = "stopped" if self.stops else ""
        turns = (*before, Turn(turn.asked, turn.asked.upper(), note, 9, 2.0))
        self.now = replace(self.now, phase="ready", text="ready", turns=turns, route=snapshot().route)
        answered.set()
