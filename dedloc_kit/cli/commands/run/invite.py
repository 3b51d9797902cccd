"""`dedloc run invite`."""

import argparse

from pydantic import BaseModel

from dedloc_kit.access.codes import MACHINES
from dedloc_kit.cli.facts import add_json
from dedloc_kit.cli.options import add_folder_of_run, add_person, positive
from dedloc_kit.display.console import Console, print_json


class PersonalCode(BaseModel):
    person: str
    code: str
    """Lets its owner in: a secret."""
    days: int
    machines: int


def add(parser: argparse.ArgumentParser) -> None:
    add_folder_of_run(parser, then="person")
    add_person(parser, "a name of your choice for them")
    parser.add_argument(
        "--days", type=positive, default=30, metavar="N", help="how long it is good for; default: %(default)s"
    )
    parser.add_argument(
        "--machines",
        type=positive,
        default=MACHINES,
        metavar="N",
        help="how many may take part at a time; default: %(default)s",
    )
    add_json(parser, PersonalCode)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.access.admission import invite

    code = invite(options.folder, options.person, options.days, options.machines)
    if options.json:
        print_json(PersonalCode(person=options.person, code=code, days=options.days, machines=options.machines))
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"the personal code of {options.person}, good for {options.days} days "
        f"and {options.machines} machines at a time; it is for nobody else:"
    )
    console.print(code)
