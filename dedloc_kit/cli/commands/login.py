"""`dedloc login`."""

import argparse

from dedloc_kit.cli.options import Commands, add_folder_of_run
from dedloc_kit.display.console import Console


def add(commands: Commands) -> None:
    parser = commands.add_parser("login", help="print the link with which you steer a run from its live page")
    add_folder_of_run(parser)
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.dashboard.http.login import Keys
    from dedloc_kit.steering.commands import dashboard_of

    link = Keys(options.folder).link(dashboard_of(options.folder))
    Console(highlight=False, markup=False, soft_wrap=True).print(link)
