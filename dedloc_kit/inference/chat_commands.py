"""What a person may type in a chat that is no message: `/system`, `/save`, `/new`, `/help`, `/quit`."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dedloc_kit.errors import UserError
from dedloc_kit.inference.turns import ChatSnapshot
from dedloc_kit.machine.paths import expanded

SIGN = "/"
HELP = (
    "/system TEXT tells the model how to answer, without TEXT nothing any more; /save FILE writes the conversation as "
    "JSON; /new begins another one; /quit ends the chat; a message that begins with / is typed with //"
)


class Talk(Protocol):
    """What the commands change, as `chat.Chat`."""

    def snapshot(self) -> ChatSnapshot: ...

    def system(self, text: str) -> None: ...

    def new(self) -> None: ...

    def messages(self) -> list[dict[str, str]]: ...


@dataclass(frozen=True)
class Typed:
    """What one line asks for: a message to the model, or a reply to the person; with neither the chat is over."""

    message: str = ""
    reply: str = ""


def typed(line: str, talk: Talk) -> Typed:
    """Do what a line asks for, but for a message, which is left to say; what is wrong is the reply.

    :param line: not empty
    """
    if not line.startswith(SIGN):
        return Typed(message=line)
    if line.startswith(2 * SIGN):
        return Typed(message=line.removeprefix(SIGN))
    name, _, rest = line.removeprefix(SIGN).partition(" ")
    rest = rest.strip()
    try:
        match name:
            case "quit":
                return Typed()
            case "help":
                return Typed(reply=HELP)
            case "new":
                talk.new()
                kept = "; the system text stays" if talk.snapshot().system else ""
                return Typed(reply=f"a new conversation{kept}")
            case "system":
                talk.system(rest)
                return Typed(reply=f"the model is told {'that' if rest else 'nothing'} before the conversation")
            case "save":
                return Typed(reply=_saved(rest, talk))
    except UserError as error:
        return Typed(reply=str(error))
    return Typed(reply=f"there is no command {SIGN}{name:.40}; {SIGN}help lists them, and {2 * SIGN} begins a message")


def _saved(name: str, talk: Talk) -> str:
    messages = talk.messages()
    if not name:
        raise UserError("/save needs the name of a file, such as /save chat.json")
    if not any(message["role"] == "assistant" for message in messages):
        raise UserError("nothing was answered yet, so there is nothing to save")
    path = expanded(name)
    save(messages, path)
    return f"{len(messages)} messages are in {path}"


def save(messages: list[dict[str, str]], path: Path) -> None:
    """Write a conversation as JSON, `role` and `content` of each message; the file is there whole or not at all.

    Raises UserError if it exists already, or cannot be written.
    """
    text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".chat-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            path.touch(exist_ok=False)  # from here on the name is ours
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)
    except FileExistsError:
        raise UserError(f"{path} exists already, and nothing is overwritten; give another name") from None
    except (OSError, ValueError) as error:  # the latter for a name that no file can have
        raise UserError(f"{path} cannot be written ({getattr(error, 'strerror', error)}); give another name") from None
