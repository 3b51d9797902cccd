"""The durable record of contributions and global steps: one SQLite file in the coordinator's folder.

A killed process loses nothing that was recorded: every change is one transaction in a write-ahead log, which
also lets the dashboard, another process, read while the coordinator writes. `synchronous=FULL` makes each
transaction survive a power failure too; at one or two transactions per global step it costs nothing that
anyone could notice.

A peer's total is the sum over its sessions of the largest `session_samples` seen, so that contributions which
nobody collected still count. A rewind cuts a session in two **parts**: what the first part gave after the
rewind is forgotten, the second part counts from there (`base`).
"""

import json
import math
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dedloc_kit.errors import UserError
from dedloc_kit.records import Contribution, Evaluation, FillMask, GlobalStep

_APPLICATION = 0x44454C43  # "DELC": tells our files from other people's SQLite files
_VERSION = 2
_SCHEMA = """
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, round TEXT NOT NULL, time REAL NOT NULL, samples INTEGER NOT NULL,
    loss REAL, peers INTEGER NOT NULL, seconds REAL NOT NULL
);
CREATE TABLE parts (
    id INTEGER PRIMARY KEY, peer TEXT NOT NULL, session TEXT NOT NULL, name TEXT NOT NULL,
    base INTEGER NOT NULL,     -- session_samples before this part began
    until INTEGER,             -- the step to which a rewind cut this part; NULL while it may still grow
    samples INTEGER NOT NULL, steps INTEGER NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL,
    UNIQUE (peer, session, base)
);
CREATE TABLE contributions (
    step INTEGER NOT NULL, part INTEGER NOT NULL REFERENCES parts (id),
    samples INTEGER NOT NULL, session_samples INTEGER NOT NULL, loss REAL, time REAL NOT NULL,
    PRIMARY KEY (step, part)
) WITHOUT ROWID;
CREATE TABLE evaluations (
    step INTEGER PRIMARY KEY, loss REAL NOT NULL, time REAL NOT NULL,
    metrics TEXT NOT NULL DEFAULT '{}', samples TEXT NOT NULL DEFAULT '[]'  -- JSON
);
"""
_FROM_VERSION_1 = """
ALTER TABLE evaluations ADD COLUMN metrics TEXT NOT NULL DEFAULT '{}';
ALTER TABLE evaluations ADD COLUMN samples TEXT NOT NULL DEFAULT '[]';
"""


class UnreadyLedger(UserError):
    """The file is there, its tables are not, or are those of before: the coordinator is about to make them."""


@dataclass(frozen=True)
class EvaluationPoint:
    """What the parameters of one global step can do with held-out data; `metrics` as in records.Evaluation."""

    step: int
    loss: float
    time: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Contributor:
    """What one peer gave over all its sessions; times are what the peer's own clock said."""

    peer: str
    name: str
    samples: int
    steps: int
    first_seen: float
    last_seen: float


class Ledger:
    """Opens the file and creates it where needed; one instance may be used from several threads."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._lock = threading.RLock()
        try:
            self._connection = self._open(read_only)
        except sqlite3.OperationalError as error:
            fix = "check that the folder exists and that you may write to it"
            if read_only:
                fix = "check that the coordinator has started and that you may read its folder"
            raise UserError(f"{path}: the ledger cannot be opened ({error}); {fix}") from None
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path} is not a ledger ({error}); move it away or choose another folder") from None

    def record_step(self, step: GlobalStep, contributions: Mapping[str, Contribution]) -> None:
        """Record a finished global step with the contributions known by then; a second time changes nothing.

        If another all-reduce led to this step before, that history was lost with those who knew it: it is forgotten.
        """
        with self._transaction():
            query = "SELECT 1 FROM steps WHERE step = ? AND round != ?"
            if self._connection.execute(query, (step.step, step.round)).fetchone() is not None:
                self._rewind(step.step - 1)
            self._connection.execute(
                "INSERT OR IGNORE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?)",
                (step.step, step.round, step.time, step.samples, step.loss, step.peers, step.seconds),
            )
            for peer, contribution in contributions.items():
                self._add(peer, contribution)

    def record_contribution(self, peer: str, contribution: Contribution) -> None:
        """Record what a peer says it gave to a step, in any order; a second time changes nothing."""
        with self._transaction():
            self._add(peer, contribution)

    def record_evaluation(self, step: int, evaluation: Evaluation, time: float) -> None:
        """Record an evaluation at a step. A loss that is not finite is no point on a curve: it is left out."""
        if not math.isfinite(evaluation.loss):
            return
        values = evaluation.model_dump()
        row = (step, evaluation.loss, time, json.dumps(values["metrics"]), json.dumps(values["samples"]))
        with self._transaction():
            self._connection.execute("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?)", row)

    def adopt(self, contributors: Iterable[Contributor]) -> None:
        """Count what was given before this ledger began, as another one of the run has it. An empty ledger only."""
        with self._transaction():
            self._connection.executemany(
                # No peer can name this session: those of peers are hexadecimal.
                "INSERT INTO parts VALUES (NULL, ?, 'earlier', ?, 0, 0, ?, ?, ?, ?)",
                [(c.peer, c.name, c.samples, c.steps, c.first_seen, c.last_seen) for c in contributors],
            )

    @property
    def path(self) -> Path:
        return self._path

    def last_step(self) -> int:
        """The newest global step, 0 if there is none."""
        return int(self._rows("SELECT coalesce(max(step), 0) FROM steps")[0][0])

    def samples_total(self) -> int:
        """The samples of all contributors together."""
        return sum(contributor.samples for contributor in self.contributors())

    def steps(self, after: int = 0, limit: int | None = None, every: int = 1) -> list[GlobalStep]:
        """Global steps after a step, oldest first; `every` thins them to its multiples and the newest."""
        rows = self._rows(
            "SELECT step, round, time, samples, loss, peers, seconds FROM steps WHERE step > ?1"
            " AND (step % ?2 = 0 OR step = (SELECT max(step) FROM steps)) ORDER BY step LIMIT ?3",
            (after, every, -1 if limit is None else limit),
        )
        fields = ("step", "round", "time", "samples", "loss", "peers", "seconds")
        return [GlobalStep(**dict(zip(fields, row, strict=True))) for row in rows]

    def evaluations(self, after: int = -1) -> list[EvaluationPoint]:
        """Evaluations after a step, oldest first; the first one is that of step 0, the untrained model."""
        return self._evaluations("step > ?", (after,))

    def first_and_last_evaluation(self) -> tuple[EvaluationPoint, EvaluationPoint] | None:
        """The two ends of the evaluation curve; None while there is no evaluation."""
        points = self._evaluations("step IN ((SELECT min(step) FROM evaluations), (SELECT max(step) FROM evaluations))")
        return (points[0], points[-1]) if points else None

    def newest_samples(self) -> list[FillMask]:
        """The samples of the newest evaluation."""
        rows = self._rows("SELECT samples FROM evaluations ORDER BY step DESC LIMIT 1")
        return [FillMask(**sample) for row in rows for sample in json.loads(row[0])]

    def contributors(self) -> list[Contributor]:
        """Everyone who gave samples, with the newest name, most samples first."""
        # Summed in Python: a peer may claim up to 2**53 samples, and SQLite's sums overflow at 2**63.
        found: dict[str, Contributor] = {}
        for row in self._rows(
            "SELECT peer, name, samples, steps, first_seen, last_seen FROM parts WHERE samples > 0 ORDER BY last_seen"
        ):
            part = Contributor(*row)
            before = found.get(part.peer)
            if before is not None:
                part = Contributor(
                    part.peer,
                    part.name,
                    part.samples + before.samples,
                    part.steps + before.steps,
                    min(part.first_seen, before.first_seen),
                    part.last_seen,
                )
            found[part.peer] = part
        return sorted(found.values(), key=lambda contributor: (-contributor.samples, contributor.peer))

    def contributions_of(self, step: int) -> dict[str, int]:
        """Peer to samples of one global step."""
        found: dict[str, int] = {}
        for peer, samples in self._rows(
            "SELECT peer, contributions.samples FROM contributions JOIN parts ON id = part WHERE step = ?", (step,)
        ):
            found[peer] = found.get(peer, 0) + samples
        return found

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        with self._lock:
            self._connection.close()

    def _open(self, read_only: bool) -> sqlite3.Connection:
        uri = f"file:{quote(str(self._path.absolute()))}?mode={'ro' if read_only else 'rwc'}"
        # Autocommit mode: transactions are written out. Threads take turns with our lock.
        connection = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            if not read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                self._create(connection)
            self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self, connection: sqlite3.Connection) -> None:
        """Create the tables in an empty database, or bring those of an earlier version up to date: all or none."""
        connection.execute("BEGIN IMMEDIATE")
        missing = ""
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            missing = _SCHEMA
        elif _marks(connection) == (_APPLICATION, 1):
            missing = _FROM_VERSION_1
        if missing:
            for statement in missing.strip().removesuffix(";").split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")

    def _check(self, connection: sqlite3.Connection) -> None:
        application, version = _marks(connection)
        if application == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            raise UnreadyLedger(f"{self._path} is still empty; wait until the coordinator has started")
        if application != _APPLICATION:
            raise UserError(f"{self._path} is a database of something else; move it away or choose another folder")
        if version > _VERSION:
            raise UserError(f"{self._path} was made by a newer version of dedloc_kit; upgrade this installation")
        if version < _VERSION:
            raise UnreadyLedger(f"{self._path} was made by an earlier version; wait until the coordinator has started")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                try:
                    yield
                    self._connection.execute("COMMIT")
                except BaseException:
                    if self._connection.in_transaction:  # a full disk has rolled it back already
                        self._connection.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as error:
                raise UserError(
                    f"{self._path}: the ledger cannot be written ({error}); free disk space, check the folder's "
                    "permissions and that no second coordinator uses it"
                ) from None

    def _rows(self, query: str, values: tuple[int, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def _evaluations(self, where: str, values: tuple[int, ...] = ()) -> list[EvaluationPoint]:
        rows = self._rows(f"SELECT step, loss, time, metrics FROM evaluations WHERE {where} ORDER BY step", values)
        return [EvaluationPoint(step, loss, time, json.loads(metrics)) for step, loss, time, metrics in rows]

    def _add(self, peer: str, contribution: Contribution) -> None:
        execute = self._connection.execute
        samples, seen = contribution.samples, contribution.session_samples
        parts = execute(
            "SELECT id, base, until FROM parts WHERE peer = ? AND session = ? ORDER BY base DESC",
            (peer, contribution.session),
        ).fetchall()
        # Counters only grow, so the part is the newest that began below this count. Nothing given: the newest.
        fitting = (row for row in parts if seen > row[1] or row[1] == 0 or samples == 0)
        part, base, until = next(fitting, (None, 0, None))
        if until is not None and contribution.step > until:
            return  # delivered again, or late, after a rewind forgot that step
        if part is None:
            part = execute(
                "INSERT INTO parts VALUES (NULL, ?, ?, ?, 0, NULL, 0, 0, ?, ?)",
                (peer, contribution.session, contribution.name, contribution.time, contribution.time),
            ).lastrowid
        added = execute(
            "INSERT OR IGNORE INTO contributions VALUES (?, ?, ?, ?, ?, ?)",
            (contribution.step, part, samples, seen, contribution.loss, contribution.time),
        )
        if added.rowcount:
            execute(
                "UPDATE parts SET samples = max(samples, ?1), steps = steps + ?2, first_seen = min(first_seen, ?3),"
                " name = iif(?3 >= last_seen, ?4, name), last_seen = max(last_seen, ?3) WHERE id = ?5",
                (seen - base, samples > 0, contribution.time, contribution.name, part),
            )

    def _rewind(self, step: int) -> None:
        """Forget everything after this step."""
        execute = self._connection.execute
        cut = execute(
            "SELECT DISTINCT parts.id, peer, session, name, base, until, base + parts.samples, last_seen"
            " FROM parts JOIN contributions ON part = parts.id WHERE step > ?",
            (step,),
        ).fetchall()
        execute("DELETE FROM steps WHERE step > ?", (step,))
        execute("DELETE FROM evaluations WHERE step > ?", (step,))
        execute("DELETE FROM contributions WHERE step > ?", (step,))
        for part, peer, session, name, base, until, seen, last_seen in cut:
            execute("UPDATE parts SET until = ? WHERE id = ?", (step, part))
            self._recount(part)
            if until is None and seen > base:  # the peer may still be there: count from here what it gives now
                execute(
                    "INSERT INTO parts VALUES (NULL, ?, ?, ?, ?, NULL, 0, 0, ?, ?)",
                    (peer, session, name, seen, last_seen, last_seen),
                )

    def _recount(self, part: int) -> None:
        """Derive a part's sums from the contributions that are left of it."""
        self._connection.execute(
            "UPDATE parts SET (samples, steps, first_seen, last_seen) ="
            " (SELECT coalesce(max(session_samples) - base, 0), count(nullif(contributions.samples, 0)),"
            " coalesce(min(time), first_seen), coalesce(max(time), last_seen)"
            " FROM contributions WHERE part = id) WHERE id = ?",
            (part,),
        )


def _marks(connection: sqlite3.Connection) -> tuple[int, int]:
    """Whose database this is, and of which version."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    return application, version
