"""`dedloc decay`: the last phase of a run whose learning rate waits for it."""

import argparse

from dedloc_kit.cli.options import Commands, add_folder_of_run
from dedloc_kit.display.console import Console


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "decay", help="let the learning rate of a run fall to its end, and the run end with it"
    )
    add_folder_of_run(parser)
    parser.add_argument("--steps", required=True, metavar="N", help="over how many global steps it falls")
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.steering.commands import decay

    Console(highlight=False, markup=False, soft_wrap=True).print(decay(options.folder, options.steps))
