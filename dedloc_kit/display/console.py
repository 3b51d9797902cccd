"""The only way to the terminal: whatever is printed there cannot take it over, wherever the text has come from."""

import json
import logging
import os
import sys
from collections.abc import Iterable

from pydantic import BaseModel
from rich import console
from rich.segment import Segment

from dedloc_kit.display.human import printable


class Console(console.Console):
    """Prints no control characters but those by which it moves and colours its own text."""

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def complain(text: str) -> None:
    """Say what keeps a command from going on."""
    sys.stderr.write(f"dedloc: {printable(text)}\n")


def mention(text: str) -> None:
    """Say how something that takes long goes on."""
    sys.stderr.write(f"{printable(text)}\n")


def print_json(facts: BaseModel) -> None:
    """Print one JSON object on standard output; nothing in it is a control character."""
    hand_out(json.dumps(json.loads(facts.model_dump_json(by_alias=True))) + "\n")


def hand_out(text: str) -> None:
    """Write for a program, on standard output: as it is, so nothing that others wrote may be in it."""
    sys.stdout.write(text)


def show_cursor() -> None:
    """Undo what a view that moves has done to the terminal, if it could not do so itself. Writes past all buffers."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[?25h")


def log_to_terminal() -> None:
    """Show warnings of this process, tracebacks included; they may quote what somebody sent."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable())
    logging.basicConfig(handlers=[handler])


class _Printable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
