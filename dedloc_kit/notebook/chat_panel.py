"""A chat in a notebook: core widgets only, as in the volunteer's panel."""

from contextlib import suppress
from typing import Any, Protocol

import ipywidgets

from dedloc_kit.errors import UserError
from dedloc_kit.inference.turns import ChatSnapshot
from dedloc_kit.notebook import chat_markup as markup
from dedloc_kit.notebook.panel import Parts, button, style

HOW_WITHOUT_BUTTONS = (
    '<div class="quiet small">The stop button of this cell (■) stops an answer; pressed at the question, or with an '
    "empty line, it ends the chat.</div>"
)


class ChatControls(Protocol):
    """What the box and the buttons do; each returns at once."""

    def say(self, text: str) -> object: ...

    def stop(self) -> None: ...


class ChatPanel:
    """Shows the snapshots of one chat; `widget` is what the cell displays."""

    def __init__(self, controls: ChatControls | None) -> None:
        """
        :param controls: none where widgets are dead while a cell runs (Colab); then the questions are asked elsewhere
        """
        self._controls = controls
        self._ready = False
        self._parts = Parts[ChatSnapshot]()
        texts = (markup.head, markup.warning, markup.state, markup.past, markup.latest, markup.facts)
        parts = [style("panel.css", "chat.css"), *map(self._parts.add, texts)]
        self._box = ipywidgets.Textarea(placeholder="Your message; Enter sends it, /help lists what else", rows=2)
        self._box.observe(self._typed, "value")
        self._send = button("Send", "Let the model answer")
        self._send.on_click(lambda _: self._say(self._box.value))
        self._stop = button("Stop", "End this answer; the chat goes on")
        self._stop.on_click(self._stop_now)
        if controls is None:
            parts.append(ipywidgets.HTML(HOW_WITHOUT_BUTTONS))
        else:
            say = ipywidgets.HBox([self._box, self._send, self._stop])
            say.add_class("dedloc-say")
            parts.append(say)
        self.widget = ipywidgets.VBox(parts)
        self.widget.add_class("dedloc")
        self.widget.add_class("dedloc-chat")

    def show(self, chat: ChatSnapshot) -> None:
        """Bring the panel up to date; only the parts that have changed are sent to the browser."""
        self._parts.show(chat)
        self._ready = chat.phase in ("ready", "failed")
        self._send.disabled = not self._ready
        self._stop.disabled = chat.phase != "answering"

    def _typed(self, change: Any) -> None:
        if change["new"].endswith("\n"):
            self._say(change["new"])

    def _say(self, text: str) -> None:
        if not self._ready or not text.strip():
            return
        assert self._controls is not None
        self._ready, self._send.disabled = False, True  # until the next snapshot
        with suppress(UserError):  # said a moment ago, in another cell; the box keeps it
            self._controls.say(text.strip())
            self._box.value = ""

    def _stop_now(self, pressed: Any) -> None:
        assert self._controls is not None
        pressed.disabled = True
        self._controls.stop()
