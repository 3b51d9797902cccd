"""What is read from a ledger. Nothing here goes through all contributions: the page asks often."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from dedloc_kit.ledger.schema import MAX_SAMPLES, decay, recent_average
from dedloc_kit.records.evaluation import Evaluation, Picture, Sample
from dedloc_kit.records.steps import GlobalStep, LeftOut

TroubleKind = Literal["failed", "rejected"]
"""A round that failed; a record from the network that was not taken."""
Mode = Literal["full", "client"]

_SAMPLES: TypeAdapter[list[Sample]] = TypeAdapter(list[Sample])
_AWAY = "(SELECT peer FROM convictions WHERE lifted IS NULL)"
_STEP_FIELDS = (
    *("step", "round", "time", "samples", "loss", "peers", "seconds"),
    *("compute", "gather", "average", "apply", "left_out"),
)


@dataclass(frozen=True)
class EvaluationPoint:
    """What the parameters of one global step can do with held-out data; `metrics` as in records.Evaluation."""

    step: int
    loss: float
    time: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class StartPoint:
    """What the model that a run goes on from, as it was published, makes of the run's held-out data."""

    run_id: str
    """The configuration under which it was measured."""
    model: str
    """Its name, for people."""
    loss: float
    """In the run's tokens, as that of its evaluations."""


@dataclass(frozen=True)
class SuiteScore:
    """What a model scored by a standard suite."""

    metric: str
    """In words, with the task."""
    model: str
    """A published one's name; empty: the run's own."""
    step: int
    """The global step of the run's own; 0 for a published one."""
    time: float
    questions: int
    mean: float
    spread: float | None
    """The standard error of the mean."""


@dataclass(frozen=True)
class Contributor:
    """What one peer gave over all its sessions; times by the coordinator's clock."""

    peer: str
    name: str
    samples: int
    steps: int
    first_seen: float
    last_seen: float


@dataclass(frozen=True)
class Person(Contributor):
    """A contributor with all that is known of it."""

    team: str
    sessions: int
    seconds: float
    """How long it was here."""
    recent: float
    """Samples a day, weighted exponentially with a half-life of a week."""
    devices: tuple[str, ...]
    carried: int
    """Bytes over a line that it lent. These are no samples, and never added to any, nor are the tokens."""
    answered: int
    """Tokens by experts that it hosted."""


@dataclass(frozen=True)
class Lender:
    """Who lent a line: what it carried is no sample, and is never added to any."""

    peer: str
    name: str
    bytes: int
    seconds: float
    """Of the global steps in which it carried something."""
    steps: int
    first_seen: float
    last_seen: float


@dataclass(frozen=True)
class Host:
    """Who hosted experts: the tokens that trainers confirm are no samples, and are never added to any."""

    peer: str
    name: str
    tokens: int
    """Once for each expert that they went to."""
    first_seen: float
    last_seen: float


@dataclass(frozen=True)
class Visit:
    """One stay of a peer; short absences are part of it."""

    peer: str
    name: str
    device: str
    mode: Mode
    since: float
    until: float
    """When it was seen last; not quite up to date while it is here."""
    samples: int
    here: bool


@dataclass(frozen=True)
class Conviction:
    """Somebody was found to cheat, and sent away."""

    peer: str
    time: float
    name: str
    why: str
    lifted: float | None = None
    """When the organizer let it in again, as far as it has."""
    last_passed: int | None = None
    """The global step up to which its work was found to be right, 0 if none of it was: what it gave later is not to its
    credit while this holds. None if that is not known; then all of it is."""


@dataclass(frozen=True)
class Trouble:
    """Something that went wrong and was dealt with."""

    time: float
    step: int | None
    text: str


def _step_of(row: Sequence[Any]) -> GlobalStep:
    values = dict(zip(_STEP_FIELDS, row, strict=True))
    left_out = values.pop("left_out")
    return GlobalStep(**values, left_out=None if left_out is None else LeftOut.model_validate_json(left_out))


class Reader:
    """The reading half of a ledger; one instance may be used from several threads."""

    _connection: sqlite3.Connection

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.RLock()

    def version(self) -> int:
        """Another number than before if another process has written in between."""
        return int(self._rows("PRAGMA data_version")[0][0])

    # The run

    def last_step(self) -> int:
        """The newest global step, 0 if there is none."""
        return int(self._rows("SELECT coalesce(max(step), 0) FROM steps")[0][0])

    def steps(self, after: int = 0, limit: int | None = None, every: int = 1) -> list[GlobalStep]:
        """Global steps after a step, oldest first; `every` thins them to its multiples and the newest."""
        thinned = (
            # Looks only these up: a long run has many more steps than anyone wants to see.
            " AND step IN (WITH RECURSIVE multiples (step) AS (SELECT (?1 / ?3 + 1) * ?3 UNION ALL"
            " SELECT step + ?3 FROM multiples WHERE step < (SELECT max(step) FROM steps))"
            " SELECT step FROM multiples UNION SELECT max(step) FROM steps)"
        )
        rows = self._rows(
            f"SELECT {', '.join(_STEP_FIELDS)} FROM steps WHERE step > ?1{thinned if every > 1 else ''}"
            " ORDER BY step LIMIT ?2",
            (after, -1 if limit is None else limit, *((every,) if every > 1 else ())),
        )
        return [_step_of(row) for row in rows]

    def lenders(self, most: int) -> list[Lender]:
        """Whose lines carried most, without those who were sent away for what they did."""
        rows = self._rows(
            "SELECT peer, name, bytes, seconds, steps, first_seen, last_seen FROM lenders WHERE peer NOT IN"
            f" {_AWAY} ORDER BY bytes DESC, peer LIMIT ?",
            (most,),
        )
        return [Lender(*row) for row in rows]

    def hosts(self, most: int) -> list[Host]:
        """Whose experts answered most tokens, without those who were sent away for what they did."""
        rows = self._rows(
            "SELECT peer, name, tokens, first_seen, last_seen FROM hosts WHERE peer NOT IN"
            f" {_AWAY} ORDER BY tokens DESC, peer LIMIT ?",
            (most,),
        )
        return [Host(*row) for row in rows]

    def giver(self, peer: str) -> Person | None:
        """Who has no samples to its credit, but lent a line or hosted experts; none if it did neither."""
        lent = next((each for each in self.lenders(-1) if each.peer == peer), None)
        hosted = next((each for each in self.hosts(-1) if each.peer == peer), None)
        gifts = [each for each in (lent, hosted) if each is not None]
        if not gifts:
            return None
        return Person(
            peer=peer,
            name=max(gifts, key=lambda gift: gift.last_seen).name,
            samples=0,
            steps=lent.steps if lent else 0,
            first_seen=min(gift.first_seen for gift in gifts),
            last_seen=max(gift.last_seen for gift in gifts),
            team="",
            sessions=0,
            seconds=lent.seconds if lent else 0.0,
            recent=0.0,
            devices=(),
            carried=lent.bytes if lent else 0,
            answered=hosted.tokens if hosted else 0,
        )

    def left_out(self, most: int) -> tuple[int, list[GlobalStep]]:
        """How often a peer was left out of a step, and the newest steps that were taken without somebody, newest
        first."""
        counted = self._rows("SELECT count FROM counts WHERE kind = 'left out'")
        rows = self._rows(
            f"SELECT {', '.join(_STEP_FIELDS)} FROM steps WHERE left_out IS NOT NULL ORDER BY step DESC LIMIT ?",
            (most,),
        )
        return (counted[0][0] if counted else 0), [_step_of(row) for row in rows]

    def names(self, peers: Collection[str]) -> dict[str, str]:
        """What these are called, as far as they are or were here."""
        marks = ",".join("?" * len(peers))
        return dict(self._rows(f"SELECT peer, name FROM people WHERE peer IN ({marks})", tuple(peers)))

    def evaluations(self, after: int = -1, most: int | None = None) -> list[EvaluationPoint]:
        """Evaluations after a step, oldest first; the first one is that of step 0, the untrained model.

        :param most: thins more of them to about so many, evenly spread, and the newest
        """
        ((count, last),) = self._rows("SELECT count(*), max(step) FROM evaluations WHERE step > ?", (after,))
        width = 1 if most is None or count <= most else 1 + (last - after) // most
        return self._evaluations(
            "step IN (SELECT max(step) FROM evaluations WHERE step > ? GROUP BY step / ?)", (after, width)
        )

    def held_out_losses(self, steps: Sequence[int]) -> dict[int, float]:
        """Those of these global steps that were evaluated, by step."""
        marks = ",".join("?" * len(steps))
        return dict(self._rows(f"SELECT step, loss FROM evaluations WHERE step IN ({marks})", steps))

    def measured_on_other(self, evaluation: Evaluation) -> bool:
        """Was it measured on other held-out data than those that are here?"""
        known = self._rows("SELECT held_out FROM evaluations WHERE held_out != '' ORDER BY step DESC LIMIT 1")
        return bool(evaluation.held_out and known and known[0][0] != evaluation.held_out)

    def first_and_last_evaluation(self) -> tuple[EvaluationPoint, EvaluationPoint] | None:
        """The two ends of the evaluation curve; None while there is no evaluation."""
        points = self._evaluations("step IN ((SELECT min(step) FROM evaluations), (SELECT max(step) FROM evaluations))")
        return (points[0], points[-1]) if points else None

    def suites(self) -> list[SuiteScore]:
        """All scores by standard suites, by suite and model, each in the order of the global steps."""
        columns = "metric, model, step, time, questions, mean, spread"
        return [SuiteScore(*row) for row in self._rows(f"SELECT {columns} FROM suites ORDER BY metric, model, step")]

    def start(self) -> StartPoint | None:
        """The model that the run goes on from; None if it goes on from none, or that was not measured."""
        rows = self._rows("SELECT run_id, model, loss FROM start")
        return StartPoint(*rows[0]) if rows else None

    def below_since(self, loss: float) -> int | None:
        """The step of the evaluation from which on all losses are below this one; None while the newest is not."""
        last_above = "(SELECT coalesce(max(step), -1) FROM evaluations WHERE loss >= ?)"
        ((step,),) = self._rows(f"SELECT min(step) FROM evaluations WHERE step > {last_above}", (loss,))
        return None if step is None else int(step)

    def samples_on_the_way(self, most: int) -> list[tuple[int, list[Sample]]]:
        """Steps with the samples of their evaluations, oldest first: the first, the newest and even ones in between."""
        steps = [step for (step,) in self._rows("SELECT step FROM evaluations WHERE samples != '[]' ORDER BY step")]
        chosen = {steps[round(part * (len(steps) - 1) / (most - 1))] for part in range(most)} if steps else set()
        query = "SELECT samples FROM evaluations WHERE step = ?"
        return [
            (step, [sample for (text,) in self._rows(query, (step,)) for sample in _SAMPLES.validate_json(text)])
            for step in sorted(chosen)
        ]

    def pictures(self) -> set[str]:
        """The digests of all pictures that are here."""
        return {digest for (digest,) in self._rows("SELECT digest FROM pictures")}

    def picture(self, digest: str) -> Picture | None:
        """The picture of this digest, if it is here."""
        rows = self._rows("SELECT pixels FROM pictures WHERE digest = ?", (digest,))
        return Picture(pixels=rows[0][0]) if rows else None

    def contributions_of(self, step: int) -> dict[str, int]:
        """Peer to samples of one global step."""
        found: dict[str, int] = {}
        for peer, samples in self._rows(
            "SELECT peer, contributions.samples FROM contributions JOIN parts ON id = part WHERE step = ?", (step,)
        ):
            found[peer] = found.get(peer, 0) + samples
        return found

    def last_taken(self) -> GlobalStep | None:
        """The newest global step that was taken here, not told of by others later."""
        query = f"SELECT {', '.join(_STEP_FIELDS)} FROM steps WHERE average IS NOT NULL ORDER BY step DESC LIMIT 1"
        rows = self._rows(query)
        return _step_of(rows[0]) if rows else None

    def met(self) -> set[str]:
        """The peers that gave to a global step which is known here."""
        query = (
            "SELECT DISTINCT peer FROM parts WHERE EXISTS"
            " (SELECT 1 FROM contributions JOIN steps USING (step) WHERE part = id AND contributions.samples > 0)"
        )
        return {peer for (peer,) in self._rows(query)}

    def troubles(self, kind: TroubleKind) -> tuple[int, list[Trouble]]:
        """How many there were of this kind, and the newest ones, newest first."""
        counted = self._rows("SELECT count FROM counts WHERE kind = ?", (kind,))
        rows = self._rows("SELECT time, step, text FROM troubles WHERE kind = ? ORDER BY id DESC", (kind,))
        return (counted[0][0] if counted else 0), [Trouble(*row) for row in rows]

    def convictions(self, most: int = -1) -> tuple[int, list[Conviction]]:
        """How many there were, those included that were lifted, and the newest, newest first; all without `most`."""
        ((count,),) = self._rows("SELECT count(*) FROM convictions")
        return count, self._convictions("ORDER BY time DESC, peer LIMIT ?", (most,))

    def sent_away(self) -> set[str]:
        """The peers whose conviction holds."""
        return {peer for (peer,) in self._rows("SELECT peer FROM convictions WHERE lifted IS NULL")}

    # People

    def people(self) -> list[Person]:
        """Everyone who has samples to its credit, most samples first."""
        devices: dict[str, list[str]] = {}
        for peer, device in self._rows("SELECT peer, device FROM devices"):
            devices.setdefault(peer, []).append(device)
        now = self._clock()
        people = []
        lent = {each.peer: each.bytes for each in self.lenders(-1)}
        hosted = {each.peer: each.tokens for each in self.hosts(-1)}
        for *row, recent, recent_time, withdrawn in self._rows(
            "SELECT peer, name, samples - withdrawn AS credit, max(0, steps - withdrawn_steps),"
            " first_seen, last_seen, team, sessions, seconds, recent, recent_time, withdrawn"
            " FROM people WHERE samples > withdrawn ORDER BY credit DESC, peer"
        ):
            left = max(0.0, recent - recent_average(withdrawn, age=0.0))  # what is withdrawn is the newest
            lately = left * decay(now - recent_time)
            peer = row[0]
            gifts = lent.get(peer, 0), hosted.get(peer, 0)
            people.append(Person(*[*row, lately, tuple(devices.get(peer, ())), *gifts]))
        return people

    def contributors(self) -> list[Contributor]:
        """The same without what only the page shows."""
        return [Contributor(p.peer, p.name, p.samples, p.steps, p.first_seen, p.last_seen) for p in self.people()]

    def samples_total(self) -> int:
        """All samples that the model has learned from, those too that are to nobody's credit."""
        # Summed in Python: a peer may claim a great many, and SQLite's sums overflow at 2**63.
        return min(MAX_SAMPLES, sum(int(row[0]) for row in self._rows("SELECT samples FROM people")))

    def seconds_total(self) -> float:
        """How long all who gave samples were here together."""
        return float(self._rows("SELECT total(seconds) FROM people WHERE samples > 0")[0][0])

    def days_of(self, peer: str) -> list[tuple[int, int]]:
        """The days (since 1970, UTC) on which a peer gave something, and how many samples, oldest first."""
        return self._rows("SELECT day, samples FROM days WHERE peer = ? AND samples > 0 ORDER BY day", (peer,))

    def losses_of(self, peer: str, most: int) -> list[tuple[int, float]]:
        """Global steps and this peer's own loss, thinned to about `most` evenly spread points."""
        ((first, last),) = self._rows(
            "SELECT min(step), max(step) FROM contributions WHERE part IN (SELECT id FROM parts WHERE peer = ?)",
            (peer,),
        )
        if first is None:
            return []
        return self._rows(
            "SELECT max(step), loss FROM contributions WHERE part IN (SELECT id FROM parts WHERE peer = ?)"
            " AND loss IS NOT NULL GROUP BY step / ? ORDER BY 1",
            (peer, 1 + (last - first) // most),
        )

    def visits_of(self, peer: str, limit: int) -> list[Visit]:
        """A peer's newest visits, newest first."""
        return self._visits("WHERE peer = ? ORDER BY since DESC LIMIT ?", (peer, limit))

    def visits(self, limit: int) -> list[Visit]:
        """Everyone's newest visits, newest first."""
        return self._visits("ORDER BY since DESC LIMIT ?", (limit,))

    def here(self) -> dict[str, float]:
        """Who is here, and since when."""
        return dict(self._rows("SELECT peer, since FROM visits WHERE here"))

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        with self._lock:
            self._connection.close()

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def _evaluations(self, where: str, values: Sequence[object] = ()) -> list[EvaluationPoint]:
        rows = self._rows(f"SELECT step, loss, time, metrics FROM evaluations WHERE {where} ORDER BY step", values)
        return [EvaluationPoint(step, loss, time, json.loads(metrics)) for step, loss, time, metrics in rows]

    def _convictions(self, which: str = "", values: Sequence[object] = ()) -> list[Conviction]:
        query = f"SELECT peer, time, name, why, lifted, last_passed FROM convictions {which}"
        return [Conviction(*row) for row in self._rows(query, values)]

    def _visits(self, which: str, values: Sequence[object]) -> list[Visit]:
        query = "SELECT peer, name, device, mode, since, until, samples, here FROM visits"
        return [Visit(*[*row, bool(here)]) for *row, here in self._rows(f"{query} {which}", values)]
