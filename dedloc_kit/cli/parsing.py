"""The parser of the command line: it imports and builds those commands alone that it is asked for."""

import argparse
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from importlib import import_module

from dedloc_kit.cli.table import COMMANDS, Command
from dedloc_kit.version import __version__


def build(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser. In its result `call` runs the command, and `command` is the command's name, such as `run kick`.

    :param words: what was typed: only the command that it names has options; default: all commands have theirs
    """
    parser = argparse.ArgumentParser(prog="dedloc", formatter_class=_Lines)
    parser.add_argument("--version", action="version", version=__version__)
    _add_below(parser, "A community trains one model together.", COMMANDS, _names(words))
    return parser


def _names(words: Sequence[str] | None) -> list[str] | None:
    return None if words is None else [word for word in words if not word.startswith("-")]


def _add_below(
    parser: argparse.ArgumentParser, about: str, headings: Mapping[str, Sequence[Command]], names: list[str] | None
) -> None:
    """Make a parser the one of a group: alone it prints its help, and its exit code is 2."""

    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return 2

    parser.usage = f"{parser.prog} [-h] {'[--version] ' * (parser.prog == 'dedloc')}COMMAND ..."
    parser.description = "\n\n".join([about, *(_listed(title, commands) for title, commands in headings.items())])
    parser.set_defaults(call=show, command=None)
    added = parser.add_subparsers(metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog)
    for command in (each for commands in headings.values() for each in commands):
        about = f"{command.help[0].upper()}{command.help[1:]}."
        below = added.add_parser(command.name, description=about, formatter_class=_Lines)
        if names is not None and names[:1] != [command.name]:
            continue
        if command.below:
            _add_below(below, about, {"commands": command.below}, names and names[1:])
        else:
            module = import_module(f"dedloc_kit.cli.commands.{command.module or command.name}")
            module.add(below)
            below.set_defaults(call=module.run, command=below.prog.removeprefix("dedloc "))


def _listed(title: str, commands: Sequence[Command]) -> str:
    """As argparse shows arguments: names, and beside them what they do."""
    width, column = shutil.get_terminal_size().columns - 2, 4 + max(len(each.name) for each in commands)
    lines = (
        textwrap.fill(
            command.help, width, initial_indent=f"  {command.name:{column - 2}}", subsequent_indent=" " * column
        )
        for command in commands
    )
    return "\n".join([f"{title}:", *lines])


class _Lines(argparse.HelpFormatter):
    """Wraps the paragraphs of a text, and leaves lists and examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if "\n" in part else super(_Lines, self)._fill_text(part, width, indent) for part in text.split("\n\n")
        )
