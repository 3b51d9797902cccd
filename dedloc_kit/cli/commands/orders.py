"""`dedloc pause`, `resume`, `finish`, `kick`, `readmit` and `announce`: an order each for a run that is up."""

import argparse

from dedloc_kit.cli.options import Commands, add_folder_of_run
from dedloc_kit.display.console import Console

_ORDERS = (
    ("pause", None, "let all volunteers of a run wait"),
    ("resume", None, "let a run go on that was paused or finished"),
    ("finish", None, "let a run end with the global step that is under way"),
    ("kick", "PEER", "send a volunteer away, by its id or name as the live page shows it"),
    ("readmit", "PEER", "let a volunteer come back that was kicked"),
    ("announce", "TEXT", "show a message to all volunteers and viewers; an empty one removes it"),
)


def add(commands: Commands) -> None:
    for name, about, help_text in _ORDERS:
        parser = commands.add_parser(name, help=help_text)
        if about is None:
            parser.set_defaults(what="")
        else:
            parser.add_argument("what", metavar=about)
        add_folder_of_run(parser)
        parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import give

    Console(highlight=False, markup=False, soft_wrap=True).print(give(options.command, options.folder, options.what))
