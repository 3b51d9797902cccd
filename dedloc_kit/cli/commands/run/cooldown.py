"""`dedloc run cooldown`: the last phase of a run whose learning rate waits for it."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser)
    parser.add_argument("--steps", required=True, metavar="N", help="over how many global steps it falls")


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import cooldown

    Console(highlight=False, markup=False, soft_wrap=True).print(cooldown(options.folder, options.steps))
