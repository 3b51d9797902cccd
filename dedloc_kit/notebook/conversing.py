"""Messages and answers, one after the other, in a terminal, through a pipe, or below a cell on Colab."""

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.inference.chat_commands import typed
from dedloc_kit.inference.turns import ChatSnapshot

if TYPE_CHECKING:
    from dedloc_kit.inference.chat import Chat

REFRESH_SECONDS = 0.1
CLOSE_SECONDS = 10.0
"""How long the end of a chat may take."""
PATIENCE = 3
"""Interrupts of one answer, the last of which ends the chat: a model may be too slow to stop soon."""
PROMPT = "You: "


class View(Protocol):
    def show(self, chat: ChatSnapshot) -> None: ...


class Interrupts:
    """Ctrl-C, or a notebook's stop button, while this is entered: raised only where nothing can be left half done.

    In another thread than the main one nothing can be interrupted.

    :ivar count: so many have come
    :ivar raised: whether they raise KeyboardInterrupt now
    :ivar line: what was typed when the last one was raised
    """

    def __init__(self) -> None:
        self.count = 0
        self.raised = True
        self.line = ""

    def __enter__(self) -> Self:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.raised:
            self.line = getattr(sys.modules.get("readline"), "get_line_buffer", str)()
            raise KeyboardInterrupt


Read = Callable[[Interrupts, bool], str | None]
"""The next line that is not empty, None if there is none; told whether the last answer was interrupted."""


def converse(talk: "Chat", view: View, read: Read, tell: Callable[[str], None], *, tries_again: bool = False) -> None:
    """Until nothing is read any more, or `/quit`. Raises KeyboardInterrupt if it is interrupted otherwise.

    :param tell: shows the reply to a command
    :param tries_again: whether the first message tries to load a model that could not be loaded; else UserError is
        raised
    """
    with Interrupts() as interrupts:
        try:
            stopped = watch(talk, talk.tried, interrupts, view, stops=False)
            if talk.snapshot().phase == "failed" and not tries_again:
                raise UserError(talk.snapshot().text)
            while (line := read(interrupts, stopped)) is not None:
                interrupts.raised, stopped = False, False
                if (asked := typed(line, talk)).message:
                    stopped = watch(talk, talk.say(asked.message), interrupts, view)
                elif asked.reply:
                    tell(asked.reply)
                    view.show(talk.snapshot())
                else:
                    break
                interrupts.raised = True
        finally:
            interrupts.raised = True
            talk.close()
            talk.over.wait(CLOSE_SECONDS)
            view.show(talk.snapshot())


def watch(
    talk: "Chat", until: threading.Event, interrupts: Interrupts, view: View | None = None, *, stops: bool = True
) -> bool:
    """Show it until the event is set; an interrupt stops the answer, the third one is raised.

    :param stops: whether an answer is written, which can be stopped

    Returns whether there was one.
    """
    before = interrupts.count
    while not until.wait(REFRESH_SECONDS):
        if interrupts.count > before and stops:
            talk.stop()
        if interrupts.count >= before + PATIENCE:
            raise KeyboardInterrupt
        if view is not None:
            view.show(talk.snapshot())
    if view is not None:
        view.show(talk.snapshot())
    return interrupts.count > before


class Lines:
    """What is typed in a terminal, or comes through a pipe."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._typed = sys.stdin.isatty()
        self._prompt = PROMPT if self._typed and Console().is_terminal else ""
        if self._typed:
            with suppress(ImportError):  # arrows, and what was typed before
                import readline  # noqa: F401
        if hasattr(sys.stdin, "reconfigure"):
            sys.stdin.reconfigure(errors="replace")

    def __call__(self, interrupts: Interrupts, interrupted: bool) -> str | None:
        """Ctrl-D ends it, and so does Ctrl-C at an empty prompt if one came before; else that begins the line anew."""
        while True:
            if interrupted:
                self._tell("(Ctrl-C once more, or Ctrl-D, ends the chat)")
            seen = interrupts.count
            try:
                if line := input(self._prompt).strip():
                    return line
                interrupted = False
            except EOFError:
                self._end_line()
                return None
            except KeyboardInterrupt:
                if interrupts.count == seen:
                    raise  # this process is told to end
                self._end_line()
                if interrupted and not interrupts.line:
                    return None
                interrupted = True

    def _end_line(self) -> None:
        if self._typed:
            self._tell("")
