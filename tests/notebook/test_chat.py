"""`chat` in a terminal, on Colab and in Jupyter, with a chat that is none."""

import builtins
import io
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dedloc_kit.display.console import Console
from dedloc_kit.errors import UserError
from dedloc_kit.inference.turns import ChatSnapshot, Turn
from dedloc_kit.notebook import chat as module
from dedloc_kit.notebook.chat import Conversation
from dedloc_kit.notebook.chat_lines import ChatLines
from dedloc_kit.notebook.conversing import Lines, converse
from tests.notebook.chats import FakeChat, snapshot


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(screen: io.StringIO) -> ChatLines:
    console = Console(file=screen, highlight=False, width=80)
    return ChatLines(console, console)


def asks(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException | None) -> None:
    """What is typed at one question after the other; None is Ctrl-C."""
    left = iter(lines)

    def typed(prompt: str) -> str:
        line = next(left)
        if line is None:
            signal.raise_signal(signal.SIGINT)
        if isinstance(line, BaseException):
            raise line
        assert isinstance(line, str)
        return line

    monkeypatch.setattr(builtins, "input", typed)


class Interrupting:
    """A view during whose first looks at an answer somebody presses Ctrl-C."""

    def __init__(self, view: ChatLines, times: int) -> None:
        self._view, self._left = view, times

    def show(self, chat: ChatSnapshot) -> None:
        self._view.show(chat)
        if chat.phase == "answering" and self._left:
            self._left -= 1
            signal.raise_signal(signal.SIGINT)


def talk_in_terminal(fake: FakeChat, lines: ChatLines, interrupts: int = 0) -> None:
    converse(fake, Interrupting(lines, interrupts), Lines(lines.tell), lines.tell)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["/quit", EOFError()])
def test_in_a_terminal_the_answer_comes_below_the_question_until_the_end(
    end: Any, monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, lines: ChatLines
) -> None:
    fake = FakeChat()
    fake.go_on.set()
    asks(monkeypatch, "", "hello ", "/nothing", end)
    talk_in_terminal(fake, lines)
    written = screen.getvalue()
    assert written.startswith("The computers that answer see what you type")
    assert "\ntoy is ready\n" in written
    assert "\nHELLO\n(Rabi 0:2, רבי 2:4; 4.0 tokens/s)\nthere is no command /nothing" in written
    assert fake.said == ["hello"]
    assert fake.over.is_set()


def test_an_interrupt_stops_the_answer_and_not_the_chat(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, lines: ChatLines
) -> None:
    fake = FakeChat()
    asks(monkeypatch, "hello", "again", EOFError())
    talk_in_terminal(fake, lines, interrupts=1)
    assert (fake.said, fake.stops) == (["hello", "again"], 1)
    assert "\nHELLO\n(stopped)\n" in screen.getvalue()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("a", None), []),  # one has stopped the answer
        ((None, "a", None, None), ["a"]),
        ((None, None), []),
        (("a", "", None, "b", None, None), ["a", "b"]),
    ],
)
def test_at_an_empty_prompt_the_second_interrupt_ends_the_chat(
    typed: Any, said: list[str], monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, lines: ChatLines
) -> None:
    fake = FakeChat()
    asks(monkeypatch, *typed)
    talk_in_terminal(fake, lines, interrupts=1)
    assert fake.over.is_set()
    assert fake.said == (said or [line for line in typed if line])
    assert "Ctrl-C once more, or Ctrl-D, ends the chat" in screen.getvalue()


def test_an_answer_that_does_not_stop_is_left_with_the_third_interrupt(
    monkeypatch: pytest.MonkeyPatch, lines: ChatLines
) -> None:
    fake = FakeChat()
    fake.slow = True
    asks(monkeypatch, "hello")
    with pytest.raises(KeyboardInterrupt):
        talk_in_terminal(fake, lines, interrupts=3)
    assert fake.over.is_set()
    fake.go_on.set()


def test_being_told_to_end_ends_the_chat_at_once(monkeypatch: pytest.MonkeyPatch, lines: ChatLines) -> None:
    fake = FakeChat()
    asks(monkeypatch, KeyboardInterrupt())  # as the command makes it of SIGTERM
    with pytest.raises(KeyboardInterrupt):
        talk_in_terminal(fake, lines)
    assert fake.over.is_set()


def test_an_interrupt_while_the_model_is_loaded_ends_the_chat(lines: ChatLines) -> None:
    fake = FakeChat()
    fake.tried.clear()
    fake.now = ChatSnapshot()

    class Loading(Interrupting):
        def show(self, chat: ChatSnapshot) -> None:
            if not fake.over.is_set():
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        converse(fake, Loading(lines, 0), Lines(lines.tell), lines.tell)  # type: ignore[arg-type]
    assert (fake.over.is_set(), fake.stops, fake.said) == (True, 0, [])


def test_a_model_that_cannot_be_loaded_is_an_error(lines: ChatLines) -> None:
    fake = FakeChat()
    fake.now = ChatSnapshot(phase="failed", text="there is none")
    with pytest.raises(UserError, match="there is none"):
        talk_in_terminal(fake, lines)
    assert fake.over.is_set()


def test_the_handler_of_before_is_back_after_a_chat(monkeypatch: pytest.MonkeyPatch, lines: ChatLines) -> None:
    before = signal.getsignal(signal.SIGINT)
    asks(monkeypatch, EOFError())
    talk_in_terminal(FakeChat(), lines)
    assert signal.getsignal(signal.SIGINT) is before


def test_through_a_pipe_each_line_is_answered_and_nothing_else_is_written_there(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO
) -> None:
    fake, answers = FakeChat(), io.StringIO()
    fake.go_on.set()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n\n two \xff\n/save\nthree"), "utf-8"))
    lines = ChatLines(Console(file=answers), Console(file=screen))
    talk_in_terminal(fake, lines)
    assert fake.said == ["one", "two \ufffd", "three"]
    assert answers.getvalue() == "ONE\nTWO \ufffd\nTHREE\n"
    assert "/save needs the name of a file" in screen.getvalue()
    assert "You: " not in screen.getvalue()


def test_the_answer_is_written_as_it_comes_and_once(screen: io.StringIO, lines: ChatLines) -> None:
    lines.show(snapshot(phase="answering", turns=(), route=()))
    before = screen.getvalue()
    for answer in ("", "one", "one two", "one two"):
        lines.show(snapshot(phase="answering", turns=(Turn("?", answer),), route=()))
    assert screen.getvalue() == before + "one two"
    lines.show(snapshot(turns=(Turn("?", "one two.", "stopped"),), route=(), model=""))
    lines.show(snapshot(turns=(Turn("?", "one two.", "stopped"),), route=(), model=""))
    assert screen.getvalue() == before + "one two.\n(stopped)\n"


def test_the_first_answer_of_a_new_conversation_is_written(screen: io.StringIO, lines: ChatLines) -> None:
    for turns in ((Turn("?", "one"),), (), (Turn("?", "two"),)):
        lines.show(snapshot(turns=turns, route=(), model=""))
    assert screen.getvalue().endswith("\none\ntwo\n")


def test_what_a_terminal_must_not_get_is_left_out(screen: io.StringIO, lines: ChatLines) -> None:
    turns = (Turn("?", "a\x1b[2Jb\x07 [bold]c[/bold]\x9b31m\u202e", "\x1b]0;t\x07"),)
    lines.show(snapshot(turns=turns, route=(), model="\x1b[2J", remark="\r\x1b"))
    assert not set(screen.getvalue()) & set("\x1b\x07\x9b\r\u202e")
    assert "a[2Jb [bold]c[/bold]" in screen.getvalue()


def test_other_cells_can_say_something_too(tmp_path: Path) -> None:
    fake = FakeChat()
    fake.go_on.set()
    talk = Conversation(fake)  # type: ignore[arg-type]
    talk.system("Be loud.")
    assert talk.say("hello") == "HELLO"
    talk.save(tmp_path / "talk.json")
    assert len(json.loads((tmp_path / "talk.json").read_text())) == 3
    talk.new()
    assert fake.now.turns == ()
    fake.stops = 1
    assert talk.say("hello") == "HELLO (stopped)"
    talk.stop()
    talk.close()
    assert (fake.stops, fake.over.is_set()) == (2, True)


def test_an_interrupt_of_such_a_cell_stops_its_answer() -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not fake.stops:
                signal.raise_signal(signal.SIGINT)
            return super().wait(timeout)

    fake = FakeChat()
    fake.event = Interrupted
    assert Conversation(fake).say("hello") == "HELLO (stopped)"  # type: ignore[arg-type]


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeChat]]:
    """The chats that are begun by `chat`."""
    made: list[FakeChat] = []

    def chat_with(where: str, kind: str, **settings: Any) -> FakeChat:
        made.append(FakeChat())
        made[-1].go_on.set()
        return made[-1]

    monkeypatch.setattr("dedloc_kit.inference.chat.chat_with", chat_with)
    monkeypatch.setattr(module, "_chats", {})
    monkeypatch.setattr(module, "has_front_end", lambda: True)
    yield made
    for fake in made:
        fake.close()


def test_in_jupyter_a_cell_that_is_run_again_shows_the_same_chat(
    fakes: list[FakeChat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "platform", lambda: "jupyter")
    first, again = (module.chat("http://x", code="c") for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.say("one") == "ONE"
    assert again.say("two") == "TWO"
    assert len(fakes) == 1
    first.close()
    module.chat("http://x", code="c")
    assert len(fakes) == 2


def test_a_model_on_this_machine_is_shown_too_and_what_is_none_is_one_line(
    fakes: list[FakeChat], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(module, "platform", lambda: "jupyter")
    monkeypatch.setattr("IPython.display.display", shown.append)
    assert module.chat(str(tmp_path)) is not None
    assert module.chat("nowhere") is None
    assert len(fakes) == 1
    assert "Nowhere does not exist; name the folder" in str([child.value for child in shown[1].children[:-1]])
    monkeypatch.setattr(module, "platform", lambda: "terminal")
    with pytest.raises(UserError, match="nowhere does not exist"):
        module.chat("nowhere")


def test_commands_are_typed_into_the_box_of_the_panel_as_well(
    fakes: list[FakeChat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "platform", lambda: "jupyter")
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    module.chat("http://x", code="c")
    box = shown[0].children[-1].children[0]
    for line in ("/system Be brief.\n", "//a\n", "/new\n"):
        box.value = line
    assert fakes[0].now.system == "Be brief."


def test_on_colab_the_cell_asks_and_shows_the_panel(fakes: list[FakeChat], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(module, "platform", lambda: "colab")
    monkeypatch.setattr(module, "token", lambda: None)
    monkeypatch.setattr("IPython.display.display", shown.append)
    asks(monkeypatch, "hello", "/system Be brief.", "")
    assert module.chat("http://x", code="c") is None
    assert (fakes[0].said, fakes[0].now.system) == (["hello"], "Be brief.")
    assert fakes[0].over.is_set()
    assert len(shown) == 1


def test_on_colab_an_interrupt_at_the_question_ends_the_chat(
    fakes: list[FakeChat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "platform", lambda: "colab")
    monkeypatch.setattr(module, "token", lambda: None)
    monkeypatch.setattr("IPython.display.display", lambda widget: None)
    asks(monkeypatch, None)
    assert module.chat("http://x", code="c") is None
    assert fakes[0].over.is_set()
