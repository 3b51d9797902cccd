"""`status`: how a run is doing, or a model that is served, as its live page tells."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from dedloc_kit.client import (
    LeftOut,
    NotThere,
    People,
    Pipeline,
    Rounds,
    RunState,
    SentAway,
    ServingState,
    fetch_people,
    fetch_pipeline,
    fetch_rounds,
    fetch_serving,
    fetch_state,
)
from dedloc_kit.display.console import Console
from dedloc_kit.display.human import count
from dedloc_kit.serving.coverage import named

SHOWN_PEOPLE, SHOWN_STEPS, SHOWN_ABSENT, SHOWN_AWAY = 20, 5, 5, 10
_WIDTH = 100


class RunStatus(RunState):
    """How a run is doing; its `repr` is what `dedloc status` shows."""

    people: People
    """Who gave most, most samples first, and how many they all are."""
    rounds: Rounds
    """The newest global steps that some were left out of, and who was sent away."""
    pipeline: Pipeline | None = None
    """The stages of a model that is cut into some."""

    def __repr__(self) -> str:
        return _text(self.shown())

    def shown(self) -> Iterator[RenderableType]:
        """The same for a terminal, line by line; what others wrote is to be printed by our `Console`."""
        yield f"{self.run_id}: {self.status}, step {self.step} of {self.total_steps}"
        if self.decay is not None:
            yield f"cooldown: step {self.decay.step} of {self.decay.steps}"
        yield f"{self.samples_total} samples in all, training loss {_number(self.loss)}"
        if self.checks:
            yield self.checks
        if self.problem:
            yield f"problem: {self.problem}"
        if self.pipeline is not None:
            yield from _stages(self.pipeline)
        if self.experts is not None:
            yield self.experts_held or f"nothing is heard of the {self.experts} experts now"
        table = Table("volunteer", "samples", "steps")
        for person in self.people.people[:SHOWN_PEOPLE]:
            table.add_row(person.name, str(person.samples), str(person.steps))
        yield table
        if self.people.total > SHOWN_PEOPLE:
            yield f"and {self.people.total - SHOWN_PEOPLE:,} more"
        if self.rounds.left_out:
            yield "\nleft out of a step, as the coordinator saw it:"
        for step in self.rounds.left_out[:SHOWN_STEPS]:
            yield f"step {step.step}: {_absent(step)}"
        if self.rounds.sent_away:
            yield "\nsent away, for work that was found to be wrong:"
        for one in self.rounds.sent_away[:SHOWN_AWAY]:
            yield _away(one)
        if self.rounds.sent_away_count > SHOWN_AWAY:
            yield f"and {self.rounds.sent_away_count - SHOWN_AWAY:,} more"


class ServingStatus(ServingState):
    """How a model is served; its `repr` is what `dedloc status` shows."""

    def __repr__(self) -> str:
        return _text(self.shown())

    def shown(self) -> Iterator[RenderableType]:
        """The same for a terminal, line by line; what others wrote is to be printed by our `Console`."""
        speed = f"{self.speed:.1f} tokens/s" if self.speed else "no answer can come"
        yield f"{self.run_id}: {self.status}, {self.model}, {speed}"
        for few, text in ((0, "nobody serves"), (1, "one server alone serves")):
            lacking = [_layers(each.begin, each.end) for each in self.stretches if each.servers == few]
            if lacking:
                yield f"{text} {named(lacking)} of {self.layers}"
        room = f"{self.free_tokens:,} of {self.cache_tokens:,} tokens free"
        yield f"{count(self.sessions, 'session')}, {room}, {self.served:,} tokens x layers served"
        table = Table("server", "layers", "state", "tokens/s", "sessions")
        for each in self.servers[:SHOWN_PEOPLE]:
            name = each.name or f"...{each.peer[-4:]}"
            table.add_row(
                *(name, _layers(each.begin, each.end), each.state, f"{each.decoding:.1f}", str(each.sessions)),
            )
        yield table
        if self.server_count > SHOWN_PEOPLE:
            yield f"and {self.server_count - SHOWN_PEOPLE:,} more"


def status(run: str | Path) -> RunStatus | ServingStatus:
    """How a run is doing, or a model that is served.

        from dedloc_kit import status

        now = status("http://HOST:8000")
        print(now.status, now.step, now.loss)

    As a cell's last value it shows what `dedloc status` does. Raises UserError if it cannot be had.

    :param run: the page's URL, the run's folder, an invitation's file, or a repository `OWNER/NAME` on the Hub
    """
    where = str(run)
    try:
        state = fetch_state(where)
    except NotThere:
        return ServingStatus(**dict(fetch_serving(where)))
    pipeline = fetch_pipeline(where) if state.stages is not None else None
    people, rounds = fetch_people(where), fetch_rounds(where, state.step)
    return RunStatus(**dict(state), people=people, rounds=rounds, pipeline=pipeline)


def _text(shown: Iterator[RenderableType]) -> str:
    console = Console(file=io.StringIO(), width=_WIDTH, highlight=False, markup=False)
    with console.capture() as written:
        for each in shown:
            console.print(each)
    return written.get().rstrip("\n")


def _stages(pipeline: Pipeline) -> Iterator[RenderableType]:
    yield pipeline.bottleneck or "nothing is heard of the stages now"
    table = Table("stage", "peers", "microbatches/s", "waiting", "step")
    for stage in pipeline.stages:
        peers = str(stage.holders or "nobody")
        table.add_row(str(stage.number), peers, f"{stage.throughput:.3g}", str(stage.queue), str(stage.step))
    if pipeline.stages:
        yield table


def _layers(begin: int, end: int) -> str:
    return str(begin) if end - begin == 1 else f"{begin} to {end - 1}"


def _absent(step: LeftOut) -> str:
    """Who was left out of a step and why, in words; of many peers only the first."""
    peers = [f"{peer.name or f'...{peer.peer[-4:]}'} {peer.why}" for peer in step.some[:SHOWN_ABSENT]]
    more = step.count - len(peers)
    return ", ".join(peers) + (f", and {more:,} more" if more > 0 else "")


def _away(one: SentAway) -> str:
    lifted = "" if one.lifted is None else f" (let in again on {_day(one.lifted)})"
    return f"{_day(one.time)} {one.name or 'somebody'} (...{one.peer[-4:]}): {one.why}{lifted}"


def _day(time: float) -> str:
    return f"{datetime.fromtimestamp(min(time, 2**35), UTC):%Y-%m-%d}"  # 2**35: in the year 3058


def _number(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.4f}"
