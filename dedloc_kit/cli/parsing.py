"""The parser of the command line: it imports and builds those commands alone that it is asked for."""

import argparse
import difflib
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

from dedloc_kit.cli.completion import SHELLS, Completed, script
from dedloc_kit.cli.table import COMMANDS, Command
from dedloc_kit.version import __version__


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, and answers a word that it does not know with its usage and the nearest one."""

    def __init__(self, *, prog: str, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=_Lines)
        self.commands: tuple[Command, ...] = ()
        """Of a group."""
        self.below: list[Parser] = []
        """Their parsers."""

    def completed(self) -> Iterator[Completed]:
        """What a shell may complete behind this command, and behind those below it."""
        actions = {flag: action for flag, action in self._option_string_actions.items() if flag.startswith("--")}
        options = {flag: tuple(map(str, action.choices or ())) for flag, action in actions.items()}
        yield Completed(self.prog.replace(" ", "/"), tuple(command.name for command in self.commands), options)
        for each in self.below:
            yield from each.completed()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        self._check(words)
        found, rest = super().parse_known_args(words, namespace)
        if rest:
            self.error(f"there is no place for {' '.join(map(repr, rest))[:200]}")
        return found, rest

    def _check(self, words: list[str]) -> None:
        """Every option is known, and of a group the command."""
        for before, word in pairwise(["", *words]):
            option = word.partition("=")[0]
            if word == "--":
                return
            if word.startswith("--") and " " not in option and option not in self._option_string_actions:
                known = [each for each in self._option_string_actions if each.startswith("--")]
                (nearest,) = difflib.get_close_matches(option, known, n=1, cutoff=0.0)
                self.error(f"there is no option {option[:80]!r}; did you mean {nearest}?")
            takes = self._option_string_actions.get(before)
            if self.commands and not word.startswith("-") and (takes is None or takes.nargs == 0):
                if word not in [command.name for command in self.commands]:
                    self.error(f"there is no command {word[:80]!r}; {self._nearest(word)}")
                return

    def _nearest(self, word: str) -> str:
        lines = {each.name: f"{command.name} {each.name}" for command in self.commands for each in command.below}
        lines |= {command.name: command.name for command in self.commands}
        for name in difflib.get_close_matches(word, lines, n=1, cutoff=0.5):
            return f"did you mean '{self.prog} {lines[name]}'?"
        return f"'{self.prog} --help' lists all"


class _Completion(argparse.Action):
    """Prints what a shell reads, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        from dedloc_kit.display.console import hand_out

        hand_out(script(values, list(build().completed())))
        parser.exit()


def build(words: Sequence[str] | None = None) -> Parser:
    """The parser. In its result `call` runs the command, and `command` is the command's name, such as `run kick`.

    :param words: what was typed: only the command that it names has options; default: all commands have theirs
    """
    parser = Parser(prog="dedloc")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=SHELLS,
        help='what completes commands and options in a shell: eval "$(dedloc --print-completion bash)"',
    )
    _add_below(parser, "A community trains one model together.", COMMANDS, _names(words))
    return parser


def _names(words: Sequence[str] | None) -> list[str] | None:
    return None if words is None else [word for word in words if not word.startswith("-")]


def _add_below(parser: Parser, about: str, headings: Mapping[str, Sequence[Command]], names: list[str] | None) -> None:
    """Make a parser the one of a group: alone it prints its help, and its exit code is 2."""

    def show(_: argparse.Namespace) -> int:
        parser.print_help()
        return 2

    parser.usage = f"{parser.prog} [-h] {'[--version] ' * (parser.prog == 'dedloc')}COMMAND ..."
    parser.description = "\n\n".join([about, *(_listed(title, commands) for title, commands in headings.items())])
    parser.commands = tuple(each for commands in headings.values() for each in commands)
    parser.set_defaults(call=show, command=None)
    added = parser.add_subparsers(metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog)
    for command in parser.commands:
        about = f"{command.help[0].upper()}{command.help[1:]}."
        below = added.add_parser(command.name, description=about)
        parser.below.append(below)
        if names is not None and names[:1] != [command.name]:
            continue
        if command.below:
            _add_below(below, about, {"commands": command.below}, names and names[1:])
        else:
            module = import_module(f"dedloc_kit.cli.commands.{command.module or command.name}")
            below.epilog = f"example:\n  {below.prog} {command.example}"
            module.add(below)
            below.set_defaults(call=module.run, command=below.prog.removeprefix("dedloc "))


def _listed(title: str, commands: Sequence[Command]) -> str:
    """As argparse shows arguments: names, and beside them what they do."""
    width, column = shutil.get_terminal_size().columns - 2, 4 + max(len(each.name) for each in commands)
    wrapper = textwrap.TextWrapper(width, subsequent_indent=" " * column, break_on_hyphens=False)
    lines = (wrapper.fill(f"  {command.name:{column - 2}}{_with_group(command)}") for command in commands)
    return "\n".join([f"{title}:", *lines])


def _with_group(command: Command) -> str:
    names = ", ".join(each.name for each in command.below)
    return f"{command.help}: {names}" if names else command.help


class _Lines(argparse.HelpFormatter):
    """Wraps the paragraphs of a text, and leaves lists and examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if "\n" in part else super(_Lines, self)._fill_text(part, width, indent) for part in text.split("\n\n")
        )
