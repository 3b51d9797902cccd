"""`dedloc pause`, `resume`, `finish`, `kick`, `readmit` and `announce`: an order each for a run that is up."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console

_ABOUT = {"kick": "PEER", "readmit": "PEER", "announce": "TEXT"}


def add(parser: argparse.ArgumentParser) -> None:
    about = _ABOUT.get(parser.prog.rpartition(" ")[2])
    if about is None:
        parser.set_defaults(what="")
    else:
        parser.add_argument("what", metavar=about)
    add_folder_of_run(parser)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import give

    Console(highlight=False, markup=False, soft_wrap=True).print(give(options.command, options.folder, options.what))
