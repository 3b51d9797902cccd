"""`dedloc status`."""

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.table import Table

from dedloc_kit.cli.options import INVITATION
from dedloc_kit.display.console import Console
from dedloc_kit.display.human import count
from dedloc_kit.serving.coverage import named

if TYPE_CHECKING:
    from dedloc_kit.client import LeftOut, Pipeline, RunState, SentAway, ServingState

SHOWN_PEOPLE, SHOWN_STEPS, SHOWN_ABSENT, SHOWN_AWAY = 20, 5, 5, 10


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("invitation", metavar="INVITATION", help=INVITATION)


def run(options: argparse.Namespace) -> None:
    from dedloc_kit.client import NotThere, fetch_serving, fetch_state

    console = Console(highlight=False, markup=False)
    try:
        state = fetch_state(options.invitation)
    except NotThere:
        _show_serving(fetch_serving(options.invitation), console)
    else:
        _show_run(state, options.invitation, console)


def _show_run(state: "RunState", invitation: str, console: Console) -> None:
    from dedloc_kit.client import fetch_people, fetch_pipeline, fetch_rounds

    console.print(f"{state.run_id}: {state.status}, step {state.step} of {state.total_steps}")
    if state.decay is not None:
        console.print(f"cooldown: step {state.decay.step} of {state.decay.steps}")
    console.print(f"{state.samples_total} samples in all, training loss {_number(state.loss)}")
    if state.checks:
        console.print(state.checks)
    if state.problem:
        console.print(f"problem: {state.problem}")
    if state.stages is not None:
        _show_stages(fetch_pipeline(invitation), console)
    if state.experts is not None:
        console.print(state.experts_held or f"nothing is heard of the {state.experts} experts now")
    people, rounds = fetch_people(invitation), fetch_rounds(invitation, state.step)
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


def _show_stages(pipeline: "Pipeline", console: Console) -> None:
    console.print(pipeline.bottleneck or "nothing is heard of the stages now")
    table = Table("stage", "peers", "microbatches/s", "waiting", "step")
    for stage in pipeline.stages:
        peers = str(stage.holders or "nobody")
        table.add_row(str(stage.number), peers, f"{stage.throughput:.3g}", str(stage.queue), str(stage.step))
    if pipeline.stages:
        console.print(table)


def _show_serving(state: "ServingState", console: Console) -> None:
    speed = f"{state.speed:.1f} tokens/s" if state.speed else "no answer can come"
    console.print(f"{state.run_id}: {state.status}, {state.model}, {speed}")
    for few, text in ((0, "nobody serves"), (1, "one server alone serves")):
        lacking = [_layers(each.begin, each.end) for each in state.stretches if each.servers == few]
        if lacking:
            console.print(f"{text} {named(lacking)} of {state.layers}")
    room = f"{state.free_tokens:,} of {state.cache_tokens:,} tokens free"
    console.print(f"{count(state.sessions, 'session')}, {room}, {state.served:,} tokens x layers served")
    table = Table("server", "layers", "state", "tokens/s", "sessions")
    for each in state.servers[:SHOWN_PEOPLE]:
        name = each.name or f"...{each.peer[-4:]}"
        table.add_row(
            *(name, _layers(each.begin, each.end), each.state, f"{each.decoding:.1f}", str(each.sessions)),
        )
    console.print(table)
    if state.server_count > SHOWN_PEOPLE:
        console.print(f"and {state.server_count - SHOWN_PEOPLE:,} more")


def _layers(begin: int, end: int) -> str:
    return str(begin) if end - begin == 1 else f"{begin} to {end - 1}"


def _absent(step: "LeftOut") -> str:
    """Who was left out of a step and why, in words: the rows, and of many peers only the first."""
    rows = [f"a row of {count(row.peers, 'peer')} {row.why}" for row in step.rows]
    peers = [f"{peer.name or f'...{peer.peer[-4:]}'} {peer.why}" for peer in step.some[:SHOWN_ABSENT]]
    more = step.count - sum(row.peers for row in step.rows) - len(peers)
    return ", ".join(rows + peers) + (f", and {more:,} more" if more > 0 else "")


def _away(one: "SentAway") -> str:
    lifted = "" if one.lifted is None else f" (let in again on {_day(one.lifted)})"
    return f"{_day(one.time)} {one.name or 'somebody'} (...{one.peer[-4:]}): {one.why}{lifted}"


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(min(time, 2**35), UTC):%Y-%m-%d}"  # 2**35: in the year 3058


def _number(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.4f}"
