"""`dedloc run pause`, `resume` and `finish`: an order each for a run that is up."""

import argparse

from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import give

    order = options.command.removeprefix("run ")
    Console(highlight=False, markup=False, soft_wrap=True).print(give(order, options.folder, ""))
