"""`chat` in a terminal, on Colab and in Jupyter, with a chat that is none."""

import builtins
import io
from collections.abc import Iterator
from typing import Any

import pytest

from dedloc_kit.display.console import Console
from dedloc_kit.inference.turns import Turn
from dedloc_kit.notebook import chat as module
from dedloc_kit.notebook.chat import Conversation, _converse, _watch
from dedloc_kit.notebook.chat_lines import ChatLines
from tests.notebook.chats import FakeChat, snapshot


@pytest.fixture
def screen() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(screen: io.StringIO) -> ChatLines:
    return ChatLines(Console(file=screen, highlight=False, width=80))


def asks(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    """What is typed at one question after the other."""
    left = iter(lines)

    def typed(prompt: str) -> str:
        line = next(left)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", typed)


@pytest.mark.parametrize("end", ["", EOFError(), KeyboardInterrupt()])
def test_in_a_terminal_the_answer_comes_below_the_question_until_an_empty_line(
    end: Any, monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, lines: ChatLines
) -> None:
    fake = FakeChat()
    fake.go_on.set()
    asks(monkeypatch, "hello ", end)
    _converse(fake, lines)  # type: ignore[arg-type]
    written = screen.getvalue()
    assert written.startswith("The computers that answer see what you type")
    assert "\nHELLO\n(Rabi 0:2, רבי 2:4; 4.0 tokens/s)\n" in written
    assert fake.said == ["hello"]
    assert fake.over.is_set()


def test_the_answer_is_written_as_it_comes_and_once(screen: io.StringIO, lines: ChatLines) -> None:
    before = screen.getvalue()
    for answer in ("", "one", "one two", "one two"):
        lines.show(snapshot(phase="answering", turns=(Turn("?", answer),), route=()))
    assert screen.getvalue() == before + "one two"
    lines.show(snapshot(turns=(Turn("?", "one two.", "stopped"),), route=()))
    lines.show(snapshot(turns=(Turn("?", "one two.", "stopped"),), route=()))
    assert screen.getvalue() == before + "one two.\n(stopped)\n"


def test_what_a_terminal_must_not_get_is_left_out(screen: io.StringIO, lines: ChatLines) -> None:
    lines.show(snapshot(turns=(Turn("?", "a\x1b[2Jb\x07 [bold]c[/bold]", "\x1b]0;t\x07"),), route=()))
    assert "\x1b" not in screen.getvalue()
    assert "a[2Jb [bold]c[/bold]" in screen.getvalue()


def interrupted(fake: FakeChat, times: int) -> Any:
    """An event at whose first looks the cell is interrupted."""

    class Until:
        left = times

        def is_set(self) -> bool:
            return not self.left and fake.go_on.is_set()

        def wait(self, seconds: float) -> bool:
            if self.left:
                self.left -= 1
                raise KeyboardInterrupt
            return self.is_set()

    return Until()


def test_an_interrupt_stops_the_answer_and_a_second_one_ends_the_wait() -> None:
    fake = FakeChat()
    _watch(fake, interrupted(fake, 1))  # type: ignore[arg-type]
    assert fake.stops == 1
    with pytest.raises(KeyboardInterrupt):
        _watch(fake, interrupted(fake, 2))  # type: ignore[arg-type]
    assert fake.stops == 2
    assert not fake.over.is_set()


def test_an_interrupt_while_it_connects_ends_the_chat(
    monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, lines: ChatLines
) -> None:
    fake = FakeChat()
    fake.tried = interrupted(fake, 1)
    asks(monkeypatch)
    _converse(fake, lines)  # type: ignore[arg-type]
    assert (fake.over.is_set(), fake.stops, fake.said) == (True, 0, [])


def test_other_cells_can_say_something_too() -> None:
    fake = FakeChat()
    fake.go_on.set()
    talk = Conversation(fake)  # type: ignore[arg-type]
    assert talk.say("hello") == "HELLO"
    fake.stops = 1
    assert talk.say("hello") == "HELLO (stopped)"
    talk.stop()
    talk.close()
    assert (fake.stops, fake.over.is_set()) == (2, True)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeChat]]:
    """The chats that are begun by `chat`."""
    made: list[FakeChat] = []

    def chat_with(where: str, **settings: Any) -> FakeChat:
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


def test_on_colab_the_cell_asks_and_shows_the_panel(fakes: list[FakeChat], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(module, "platform", lambda: "colab")
    monkeypatch.setattr(module, "token", lambda: None)
    monkeypatch.setattr("IPython.display.display", shown.append)
    asks(monkeypatch, "hello", "")
    assert module.chat("http://x", code="c") is None
    assert fakes[0].said == ["hello"]
    assert fakes[0].over.is_set()
    assert len(shown) == 1
