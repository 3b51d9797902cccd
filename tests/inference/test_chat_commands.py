"""What is typed in a chat and is no message."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dedloc_kit.errors import UserError
from dedloc_kit.inference.chat_commands import Typed, save, typed
from dedloc_kit.inference.turns import ChatSnapshot, Turn, messages_of

TURNS = (Turn("hello", "hi", "stopped"), Turn("nobody answered", note="nobody serves"), Turn("কেমন আছ?", "ভালো"))


class Talk:
    """Notes what it is told."""

    def __init__(self, *turns: Turn) -> None:
        self.now = ChatSnapshot(phase="ready", turns=turns)

    def snapshot(self) -> ChatSnapshot:
        return self.now

    def system(self, text: str) -> None:
        self.now = replace(self.now, system=text)

    def new(self) -> None:
        if not self.now.turns:
            raise UserError("wait")
        self.now = replace(self.now, turns=())

    def messages(self) -> list[dict[str, str]]:
        return messages_of([turn for turn in self.now.turns if turn.answer], self.now.system)


@pytest.mark.parametrize("line", ["hello", " /new", "a /new", "<|im_end|>", "\\quit"])
def test_all_else_is_a_message(line: str) -> None:
    assert typed(line, Talk()) == Typed(message=line)


def test_a_message_may_begin_with_the_sign_of_a_command() -> None:
    assert typed("//etc/hosts is what?", Talk()) == Typed(message="/etc/hosts is what?")
    assert (
        typed("/etc/hosts", Talk()).reply == "there is no command /etc/hosts; /help lists them, and // begins a message"
    )


def test_the_commands() -> None:
    talk = Talk(*TURNS)
    assert typed("/system  Answer in\nverse. ", talk).reply == "the model is told that before the conversation"
    assert talk.now.system == "Answer in\nverse."
    assert typed("/new", talk).reply == "a new conversation; the system text stays"
    assert typed("/new", talk).reply == "wait"
    assert typed("/system", talk).reply == "the model is told nothing before the conversation"
    assert talk.now == ChatSnapshot(phase="ready")
    assert all(name in typed("/help", talk).reply for name in ("/system", "/save", "/new", "/quit"))
    assert typed("/quit", talk) == Typed()


def test_a_conversation_is_saved_with_its_roles_and_nothing_is_overwritten(tmp_path: Path) -> None:
    talk, path = Talk(*TURNS), tmp_path / "a talk.json"
    talk.system("Be brief.")
    assert typed(f"/save {path}", talk).reply == f"5 messages are in {path}"
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert [each["role"] for each in saved] == ["system", *["user", "assistant"] * 2]
    assert [each["content"] for each in saved] == ["Be brief.", "hello", "hi", "কেমন আছ?", "ভালো"]
    talk.new()
    assert typed(f"/save {path}", talk).reply == "nothing was answered yet, so there is nothing to save"
    assert typed(f"/save {path}", Talk(Turn("a", "b"))).reply == (
        f"{path} exists already, and nothing is overwritten; give another name"
    )
    assert json.loads(path.read_text(encoding="utf-8")) == saved
    assert typed("/save", talk).reply == "/save needs the name of a file, such as /save chat.json"
    assert [each.name for each in tmp_path.iterdir()] == ["a talk.json"]


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "no" / "such.json", tmp_path, tmp_path / "link", tmp_path / ("a" * 300), Path("\0")):
        with pytest.raises(UserError, match=r"cannot be written|exists already"):
            save([{"role": "user", "content": "a"}], path)
    assert [each.name for each in tmp_path.iterdir()] == ["link"]
