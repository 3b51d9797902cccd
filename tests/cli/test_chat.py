"""`dedloc chat`: through a pipe, and in a real terminal."""

import io
import os
import pty
import select
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dedloc_kit.cli.main import main
from dedloc_kit.display.human import printable
from tests.hang import HANG
from tests.inference.chats import answered
from tests.inference.local import chat_with_folder, write_model

IN_A_TERMINAL = """
import fcntl, os, sys, termios, threading
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from dedloc_kit.inference.chat import Chat
from dedloc_kit.inference.local_chat import local
from dedloc_kit.notebook.chat import talk_in_terminal
steps, stopped = [], threading.Event()

class Stopping(Chat):
    def stop(self):
        super().stop()
        stopped.set()

def step(*_):
    steps.append(1)
    if len(steps) == 3:
        os.write(2, b"[the third step]")
        stopped.wait(300)

def load(told):
    loaded = local(sys.argv[1], told, device="cpu")
    loaded.model.register_forward_pre_hook(step)
    return loaded

talk_in_terminal(Stopping(load, length=256, most=12))
"""


class Terminal:
    """A program in a terminal of its own.

    :ivar screen: what is on it that `expect` has not met
    """

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", IN_A_TERMINAL, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.screen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, words: str) -> str:
        """Wait until these are on the screen; returns what stood before them."""
        while words not in self.screen:
            assert select.select([self._master], [], [], HANG)[0], self.screen
            try:
                self.screen += os.read(self._master, 4096).decode(errors="replace")
            except OSError:  # the program has ended
                raise AssertionError(f"{words!r} never came: {self.screen!r}") from None
        before, _, self.screen = self.screen.partition(words)
        return before

    def close(self) -> None:
        os.close(self._master)
        self.process.kill()
        self.process.wait(HANG)


@pytest.mark.real
def test_in_a_terminal_ctrl_c_stops_the_answer_and_twice_at_the_prompt_the_chat(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    with closing(Terminal(str(tmp_path / "model"))) as terminal:
        assert "is ready; /help tells" in terminal.expect("You: ")
        terminal.type("the river\n")
        terminal.expect("[the third step]")
        terminal.type("\x03")
        terminal.expect("(stopped)")
        terminal.expect("You: ")
        terminal.type("a line that is taken back")
        terminal.expect("taken back")
        terminal.type("\x03")
        terminal.expect("once more, or Ctrl-D, ends the chat")
        terminal.expect("You: ")
        terminal.type("and the sea\n")
        terminal.expect("(cut off after 12 tokens)")
        terminal.expect("You: ")
        terminal.type("\x1b[A")  # what was typed before
        terminal.expect("and the sea")
        terminal.type("\x15")
        terminal.expect("\x1b[K")  # it is gone
        terminal.type("\x03")
        terminal.expect("once more")
        terminal.expect("You: ")
        terminal.type("\x03")
        assert terminal.process.wait(HANG) == 0


@pytest.mark.usefixtures("one_thread")
def test_lines_that_come_through_a_pipe_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "model")
    chat = chat_with_folder(tmp_path / "model", 2048, 512)
    answers = [answered(chat, text).answer for text in ("the river", "and the sea?")]
    chat.close()
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"the river\nand the sea?\n/save {tmp_path / 'talk.json'}\n"))
    assert main(["chat", str(tmp_path / "model"), "--device", "cpu", "--threads", "1"]) == 0
    said = capsys.readouterr()
    assert said.out == printable("".join(f"{answer}\n" for answer in answers))
    assert "model is ready" in said.err
    assert f"4 messages are in {tmp_path / 'talk.json'}" in said.err


@pytest.mark.parametrize("what", ["nowhere", "", "."])
def test_what_is_no_model_is_one_line(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["chat", what, "--device", "cpu", "--threads", "1"]) == 2
    line = [line for line in capsys.readouterr().err.splitlines() if line.startswith("dedloc: ")]
    assert len(line) == 1
