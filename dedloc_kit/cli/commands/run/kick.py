"""`dedloc run kick` and `unban`: an order about one peer."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser, then="peer")
    parser.add_argument("peer", metavar="PEER", help="its name or id as the live page shows it, or how one begins")


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import give

    order = options.command.removeprefix("run ")
    Console(highlight=False, markup=False, soft_wrap=True).print(give(order, options.folder, options.peer))
