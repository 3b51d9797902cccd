"""`dedloc run checkpoint`."""

import argparse

from dedloc_kit.cli.facts import add_json
from dedloc_kit.cli.options import add_folder_of_run
from dedloc_kit.display.console import Console, print_json
from dedloc_kit.steering.commands import SavedCheckpoint


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser)
    add_json(parser, SavedCheckpoint)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import save_now

    saved = save_now(options.folder)
    if options.json:
        print_json(saved)
        return
    Console(highlight=False, markup=False, soft_wrap=True).print(str(saved.path))
