"""`chat`: one call in a notebook cell, or in a script, and one talks with a model that its community serves."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dedloc_kit.access.personal_code import personal_code
from dedloc_kit.inference.turns import ChatSnapshot
from dedloc_kit.machine.account import token
from dedloc_kit.notebook.taking_part import SECRETS, has_front_end, platform

if TYPE_CHECKING:
    from dedloc_kit.inference.chat import Chat
    from dedloc_kit.notebook.chat_panel import ChatPanel

REFRESH_SECONDS = 0.2
CLOSE_SECONDS = 10.0
"""How long the end of a chat may take."""

_chats: dict[str, "Chat"] = {}
"""Those of this kernel that go on, by invitation: a cell that is run again shows the same chat again."""


class View(Protocol):
    def show(self, chat: ChatSnapshot) -> None: ...


class Conversation:
    """What `chat` returns in a notebook: the same as the panel, for other cells."""

    def __init__(self, chat: "Chat") -> None:
        self._chat = chat

    def say(self, text: str) -> str:
        """Wait for the answer; interrupting the cell stops it. Raises UserError while another one is written."""
        self._chat.tried.wait()
        _watch(self._chat, self._chat.say(text))
        turn = self._chat.snapshot().turns[-1]
        return f"{turn.answer} ({turn.note})" if turn.note else turn.answer

    def stop(self) -> None:
        """End the answer that is being written; the chat goes on."""
        self._chat.stop()

    def close(self) -> None:
        """End the chat: the servers forget it."""
        self._chat.close()

    def _ipython_display_(self) -> None:
        """Nothing: as a cell's last value it would show below the panel otherwise."""


def chat(
    invitation: str, *, code: str | None = None, folder: str | Path | None = None, length: int = 2048
) -> Conversation | None:
    """See `dedloc_kit.chat`."""
    where = platform()
    talk, panel = _chats.get(invitation), None
    if talk is None or talk.snapshot().phase == "over":
        if where == "colab":
            panel = _panel(None, ChatSnapshot(text=SECRETS))  # first of all, for what follows may take long
            token()  # the notebook may ask its owner for it, which only the main thread can
        if code is None:
            code = personal_code(invitation, ask=where != "kaggle batch")
        from dedloc_kit.inference.chat import chat_with  # which needs torch

        talk = _chats[invitation] = chat_with(invitation, folder=folder, code=code, length=length)
    if where == "terminal":
        from dedloc_kit.notebook.chat_lines import ChatLines

        _converse(talk, ChatLines())
        return None

    if panel is None:
        panel = _panel(None if where == "colab" else talk, talk.snapshot())
    if where == "colab":
        _converse(talk, panel)
        return None
    if not has_front_end():  # nobody will press a button; other cells may say something
        _watch(talk, talk.tried, panel)
    threading.Thread(target=_keep_up_to_date, args=(talk, panel), name="chat panel", daemon=True).start()
    return Conversation(talk)


def _panel(talk: "Chat | None", snapshot: ChatSnapshot) -> "ChatPanel":
    from IPython.display import display

    from dedloc_kit.notebook.chat_panel import ChatPanel

    panel = ChatPanel(talk)
    panel.show(snapshot)
    display(panel.widget)
    return panel


def _converse(talk: "Chat", view: View) -> None:
    """A question and its answer, again and again, until an empty line, or an interrupt when no answer is written.

    On Colab only the main thread can update a panel, and only while a cell runs: so here.
    """
    try:
        _watch(talk, talk.tried, view, stop=False)
        while asked := input("You: ").strip():
            _watch(talk, talk.say(asked), view)
    except (EOFError, KeyboardInterrupt):
        pass
    talk.close()
    talk.over.wait(CLOSE_SECONDS)
    view.show(talk.snapshot())


def _watch(talk: "Chat", until: threading.Event, view: View | None = None, stop: bool = True) -> None:
    """Show it until the event is set; an interrupt stops the answer, another one is raised."""
    while not until.is_set():
        try:
            while not until.wait(REFRESH_SECONDS):
                if view is not None:
                    view.show(talk.snapshot())
        except KeyboardInterrupt:
            if not stop:
                raise
            talk.stop()
            stop = False
    if view is not None:
        view.show(talk.snapshot())


def _keep_up_to_date(talk: "Chat", panel: View) -> None:
    while not talk.over.wait(REFRESH_SECONDS):
        panel.show(talk.snapshot())
    panel.show(talk.snapshot())
