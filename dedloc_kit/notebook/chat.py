"""`chat`: one call in a notebook cell, or in a script, and one talks with a model, here or served by its community."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dedloc_kit.access.own_code import personal_code
from dedloc_kit.errors import UserError
from dedloc_kit.inference.chat_commands import save, typed
from dedloc_kit.inference.kinds import kind_of
from dedloc_kit.inference.turns import ChatSnapshot
from dedloc_kit.machine.account import token
from dedloc_kit.machine.paths import expanded
from dedloc_kit.notebook.conversing import PROMPT, REFRESH_SECONDS, Interrupts, Lines, View, converse, watch
from dedloc_kit.notebook.launcher import SECRETS, has_front_end, platform

if TYPE_CHECKING:
    from dedloc_kit.inference.chat import Chat
    from dedloc_kit.notebook.chat_panel import ChatPanel

_chats: dict[str, "Chat"] = {}
"""Those of this kernel that go on, by what they are with: a cell that is run again shows the same chat again."""


class Conversation:
    """What `chat` returns in a notebook: the same as the panel, for other cells."""

    def __init__(self, chat: "Chat") -> None:
        self._chat = chat

    def say(self, text: str) -> str:
        """Wait for the answer; interrupting the cell stops it. Raises UserError while another one is written."""
        self._chat.tried.wait()
        with Interrupts() as interrupts:
            done = self._chat.say(text)
            interrupts.raised = False
            watch(self._chat, done, interrupts)
        turn = self._chat.snapshot().turns[-1]
        return f"{turn.answer} ({turn.note})" if turn.note else turn.answer

    def system(self, text: str) -> None:
        """Tell the model how to answer, from now on; an empty text takes that back."""
        self._chat.system(text)

    def new(self) -> None:
        """Begin another conversation with the same model."""
        self._chat.new()

    def save(self, file: str | Path) -> None:
        """Write the conversation as JSON, `role` and `content` of each message. Raises UserError if the file exists."""
        save(self._chat.messages(), expanded(file))

    def stop(self) -> None:
        """End the answer that is being written; the chat goes on."""
        self._chat.stop()

    def close(self) -> None:
        """End the chat: whatever computes the answers forgets it."""
        self._chat.close()

    def _ipython_display_(self) -> None:
        """Nothing: as a cell's last value it would show below the panel otherwise."""


class _Box:
    """What is typed into the panel's box."""

    def __init__(self, chat: "Chat") -> None:
        self._chat = chat

    def say(self, text: str) -> None:
        asked = typed(text, self._chat)
        if asked.message:
            self._chat.say(asked.message)
        elif asked.reply:
            self._chat.tell(asked.reply)
        else:
            self._chat.close()

    def stop(self) -> None:
        self._chat.stop()


def chat(
    where: str, *, code: str | None = None, folder: str | Path | None = None, length: int = 2048
) -> Conversation | None:
    """Talk with a model on this machine, or with one that its community serves, whose servers see what is typed.

        from dedloc_kit import chat

        chat("runs/RUN-ID")

    In Jupyter the cell returns, and the panel takes messages. On Colab, whose buttons are dead while something else
    goes on, the cell asks for one message after the other: its stop button stops an answer, an empty line ends the
    chat. In a script or terminal it is what `dedloc chat` is.

    :param where: a folder that transformers loads, a run's folder (its best checkpoint), a model `OWNER/NAME` on the
        Hub, or an invitation: a page's URL (`http://...`), a repository on the Hub without a model, or a file
    :param code: what lets you in if a served model is not open to all; as for `join`
    :param folder: keeps your identity and the parts of a served model that this machine needs; by default in your home
    :param length: tokens that the model sees at once
    """
    place = platform()
    talk, panel = _chats.get(where), None
    if talk is None or talk.snapshot().phase == "over":
        if place == "colab":
            panel = _panel(None, SECRETS)  # first of all, for what follows may take long
            token()  # the notebook may ask its owner for it, which only the main thread can
        try:
            kind = kind_of(where)
            if code is None:
                code = personal_code(where, ask=place != "kaggle batch") if kind == "served" else ""
        except UserError as error:
            if place == "terminal":
                raise
            (panel or _panel(None)).show(ChatSnapshot(phase="over", text=str(error)))
            return None
        from dedloc_kit.inference.chat import chat_with  # which needs torch

        talk = _chats[where] = chat_with(where, kind, folder=folder, code=code, length=length)
    if place == "terminal":
        talk_in_terminal(talk)
        return None

    if panel is None:
        panel = _panel(None if place == "colab" else _Box(talk))
        panel.show(talk.snapshot())
    if place == "colab":
        _talk_below(talk, panel)
        return None
    if not has_front_end():  # nobody will press a button; other cells may say something
        with Interrupts() as interrupts:
            watch(talk, talk.tried, interrupts, panel, stops=False)
    threading.Thread(target=_keep_up_to_date, args=(talk, panel), name="chat panel", daemon=True).start()
    return Conversation(talk)


def talk_in_terminal(talk: "Chat") -> None:
    """Until the person ends it. Raises UserError if the model cannot be loaded, and KeyboardInterrupt."""
    from dedloc_kit.notebook.chat_lines import ChatLines

    lines = ChatLines(greeting="; /help tells what else may be typed")
    converse(talk, lines, Lines(lines.tell), lines.tell)


def _talk_below(talk: "Chat", panel: "ChatPanel") -> None:
    """On Colab only the main thread can update a panel, and only while a cell runs: so here."""

    def read(interrupts: Interrupts, interrupted: bool) -> str | None:
        try:
            return input(PROMPT).strip() or None
        except EOFError:
            return None

    with suppress(KeyboardInterrupt):
        converse(talk, panel, read, talk.tell, tries_again=True)


def _panel(controls: _Box | None, text: str = "loading") -> "ChatPanel":
    from IPython.display import display

    from dedloc_kit.notebook.chat_panel import ChatPanel

    panel = ChatPanel(controls)
    panel.show(ChatSnapshot(text=text))
    display(panel.widget)
    return panel


def _keep_up_to_date(talk: "Chat", panel: View) -> None:
    while not talk.over.wait(REFRESH_SECONDS):
        panel.show(talk.snapshot())
    panel.show(talk.snapshot())
