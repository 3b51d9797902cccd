"""The `dedloc` command; what each of its commands takes and does is in `dedloc_kit.cli.commands`."""

import argparse
import os
import shlex
import signal
import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dedloc_kit.cli.interrupts import call
from dedloc_kit.cli.parsing import Parser, build

FOR_ORGANIZERS = {"fastapi", "starlette", "uvicorn", "prometheus_client", "maxminddb"}
"""What the extra `organizer` installs: whoever only takes part does without."""
_PASTED = {
    *("announce_host", "against", "allow_host", "checkpoint", "dataset", "host", "hub", "invitation", "push", "resume"),
    *("source", "start", "url", "where"),
}
"""Options with an address, or with a name on the Hub."""


def parser() -> Parser:
    """The whole command line, with the options of all commands."""
    return build()


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 a bug, 2 something that the person at the keyboard can put right."""
    _open_standard_streams()
    words = sys.argv[1:] if arguments is None else arguments
    options = build(words).parse_args(words)
    if options.command is None:
        return int(options.call(options))
    from dedloc_kit.display.console import complain, log_to_terminal, mention
    from dedloc_kit.errors import UserError
    from dedloc_kit.fetching import tell_downloads

    signal.signal(signal.SIGTERM, _interrupt)
    log_to_terminal()
    tell_downloads(lambda line, _: mention(line))
    try:
        if options.command != "run announce":  # which an empty text takes back
            _check_none_empty(words)
        _check_pasted(options)
        _check_order(options, words)
        return call(options)
    except UserError as error:
        complain(str(error))
        return 2
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in FOR_ORGANIZERS:
            raise
        install = "pip install 'dedloc_kit[organizer]'"
        complain(f"{options.command} needs {package}, which only organizers install; run {install}")
        return 2
    except KeyboardInterrupt:
        return 130


def _check_none_empty(arguments: list[str]) -> None:
    """Raise UserError for an empty argument that is not an option's value: as a path it would be the current folder."""
    from dedloc_kit.errors import UserError

    for before, given in pairwise(arguments):
        if not given.strip() and not before.startswith("-"):
            raise UserError(
                f"the argument after '{before:.80}' is empty; give it (is a variable of your shell not set?)"
            )


def _check_pasted(options: argparse.Namespace) -> None:
    """Raise UserError if an address, or a name on the Hub, holds a character that is not seen."""
    from dedloc_kit.machine.hidden_characters import check_pasted
    from dedloc_kit.machine.paths import exists, expanded

    for name, value in vars(options).items():
        for text in value if isinstance(value, list) else [value]:
            pasted = name in _PASTED or (options.command, name) == ("serve", "what")
            if pasted and isinstance(text, str) and not exists(expanded(text)):
                check_pasted(f"'{text}'", text)


def _check_order(options: argparse.Namespace, words: list[str]) -> None:
    """Raise UserError with the right line if the run's folder does not come first, as it does in every command."""
    from dedloc_kit.errors import UserError
    from dedloc_kit.machine.paths import is_folder

    second = getattr(options, getattr(options, "behind_folder", ""), None)
    if not second or is_folder(options.folder) or not is_folder(Path(second)):
        return
    places = [at for at, word in enumerate(words) if second == word or Path(word) == options.folder][-2:]
    line = list(words)
    for here, there in (places, places[::-1]):
        line[here] = words[there]
    raise UserError(f"the run's folder comes first: dedloc {shlex.join(line)}")


def _open_standard_streams() -> None:
    """Whoever started us may have closed some; what is opened next would take their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (to the end of the process)


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Being asked to end is the same as Ctrl-C: leave cleanly."""
    raise KeyboardInterrupt
