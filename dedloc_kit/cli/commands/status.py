"""`dedloc status`."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.table import Table

from dedloc_kit.cli.options import INVITATION, Commands
from dedloc_kit.display.console import Console
from dedloc_kit.display.human import count

if TYPE_CHECKING:
    from dedloc_kit.client import LeftOut, SentAway

SHOWN_PEOPLE, SHOWN_STEPS, SHOWN_ABSENT, SHOWN_AWAY = 20, 5, 5, 10


def add(commands: Commands) -> None:
    parser = commands.add_parser("status", help="how a run is doing")
    parser.add_argument("invitation", metavar="INVITATION", help=INVITATION)
    parser.set_defaults(call=run)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.client import fetch_people, fetch_rounds, fetch_state

    state = fetch_state(options.invitation)
    console = Console(highlight=False, markup=False)
    console.print(f"{state.run_id}: {state.status}, step {state.step} of {state.total_steps}")
    if state.decay is not None:
        console.print(f"decaying: step {state.decay.step} of {state.decay.steps}")
    console.print(f"{state.samples_total} samples in all, training loss {_number(state.loss)}")
    if state.checks:
        console.print(state.checks)
    if state.problem:
        console.print(f"problem: {state.problem}")
    people, rounds = fetch_people(options.invitation), fetch_rounds(options.invitation, state.step)
    table = Table("volunteer", "samples", "steps")
    for person in people.people[:SHOWN_PEOPLE]:
        table.add_row(person.name, str(person.samples), str(person.steps))
    console.print(table)
    if people.total > SHOWN_PEOPLE:
        console.print(f"and {people.total - SHOWN_PEOPLE:,} more")
    if rounds.left_out:
        console.print("\nleft out of a step, as the coordinator saw it:")
    for step in rounds.left_out[:SHOWN_STEPS]:
        console.print(f"step {step.step}: {_absent(step)}")
    if rounds.sent_away:
        console.print("\nsent away, for work that was found to be wrong:")
    for one in rounds.sent_away[:SHOWN_AWAY]:
        console.print(_away(one))
    if rounds.sent_away_count > SHOWN_AWAY:
        console.print(f"and {rounds.sent_away_count - SHOWN_AWAY:,} more")


def _absent(step: "LeftOut") -> str:
    """Who was left out of a step and why, in words: the rows, and of many peers only the first."""
    rows = [f"a row of {count(row.peers, 'peer')} {row.why}" for row in step.rows]
    named = [f"{peer.name or f'...{peer.peer[-4:]}'} {peer.why}" for peer in step.some[:SHOWN_ABSENT]]
    more = step.count - sum(row.peers for row in step.rows) - len(named)
    return ", ".join(rows + named) + (f", and {more:,} more" if more > 0 else "")


def _away(one: "SentAway") -> str:
    lifted = "" if one.lifted is None else f" (let in again on {_day(one.lifted)})"
    return f"{_day(one.time)} {one.name or 'somebody'} (...{one.peer[-4:]}): {one.why}{lifted}"


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(min(time, 2**35), UTC):%Y-%m-%d}"  # 2**35: in the year 3058


def _number(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.4f}"
