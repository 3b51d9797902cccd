"""`dedloc status`."""

import argparse

from rich.table import Table

from dedloc_kit.cli.options import INVITATION, Commands
from dedloc_kit.display.console import Console


def add(commands: Commands) -> None:
    parser = commands.add_parser("status", help="how a run is doing")
    parser.add_argument("invitation", metavar="INVITATION", help=INVITATION)
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.client import fetch_people, fetch_state

    state = fetch_state(options.invitation)
    console = Console(highlight=False, markup=False)
    console.print(f"{state.run_id}: {state.status}, step {state.step} of {state.total_steps}")
    if state.decay is not None:
        console.print(f"decaying: step {state.decay.step} of {state.decay.steps}")
    console.print(f"{state.samples_total} samples in all, training loss {_number(state.loss)}")
    if state.problem:
        console.print(f"problem: {state.problem}")
    table = Table("volunteer", "samples", "steps")
    for person in fetch_people(options.invitation):
        table.add_row(person.name, str(person.samples), str(person.steps))
    console.print(table)


def _number(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.4f}"
