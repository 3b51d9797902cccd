"""`dedloc invite`."""

import argparse

from dedloc_kit.access.codes import MACHINES
from dedloc_kit.cli.options import Commands, add_folder_of_run, add_person, positive
from dedloc_kit.display.console import Console


def add(commands: Commands) -> None:
    parser = commands.add_parser(
        "invite", help='make a personal code that lets somebody into a run with access = "invite"'
    )
    add_person(parser)
    add_folder_of_run(parser)
    parser.add_argument("--days", type=positive, default=30, metavar="N", help="how long it is good for")
    parser.add_argument(
        "--machines", type=positive, default=MACHINES, metavar="N", help="how many may take part at a time"
    )
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.access.office import invite

    code = invite(options.folder, options.person, options.days, options.machines)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"the personal code of {options.person}, good for {options.days} days "
        f"and {options.machines} machines at a time; it is for nobody else:"
    )
    console.print(code)
