"""`dedloc status`."""

import argparse

from dedloc_kit.cli.facts import add_json
from dedloc_kit.cli.options import INVITATION


def add(parser: argparse.ArgumentParser) -> None:
    from dedloc_kit.notebook.status import RunStatus, ServingStatus

    parser.add_argument("invitation", metavar="INVITATION", help=f"{INVITATION}, or the run's folder")
    add_json(parser, RunStatus, ServingStatus)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.display.console import Console, print_json
    from dedloc_kit.notebook.status import status

    now = status(options.invitation)
    if options.json:
        print_json(now)
        return
    console = Console(highlight=False, markup=False)
    for each in now.shown():
        console.print(each)
