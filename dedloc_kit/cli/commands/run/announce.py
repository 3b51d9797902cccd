"""`dedloc run announce`."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser, then="text")
    parser.add_argument("text", metavar="TEXT", help='"" removes the message')


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import give

    Console(highlight=False, markup=False, soft_wrap=True).print(give("announce", options.folder, options.text))
