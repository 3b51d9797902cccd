"""What is written to a ledger, each change in one transaction.

`synchronous=FULL` makes each transaction survive a power failure too; at one or two transactions per global step it
costs nothing that anyone could notice.

What the members of a global step signed counts, and nothing that is said about it later. Where steps are missing here,
a session's own counter (`session_samples`) says what it gave to them. A rewind cuts a session in two **parts**: what
the first part gave after the rewind is forgotten, the second part counts from there (`base`).
"""

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import quote

from dedloc_kit.display.human import without_hosts
from dedloc_kit.errors import UserError
from dedloc_kit.events import PeerSeen
from dedloc_kit.ledger.credit import credited, withdraw
from dedloc_kit.ledger.files import NOTHING, Damaged, Newest, back_up, newest
from dedloc_kit.ledger.files import check as check_file
from dedloc_kit.ledger.hosted import confirm
from dedloc_kit.ledger.reading import Contributor, Conviction, Reader, StartPoint, SuiteScore, TroubleKind
from dedloc_kit.ledger.schema import DAY_SECONDS, MAX_SAMPLES, check, decay, prepare, recent_average
from dedloc_kit.records.evaluation import Evaluation
from dedloc_kit.records.steps import Contribution, GlobalStep

ABSENCE_SECONDS = 60.0
"""Whoever comes back within this time goes on with the same visit."""
MARK_SECONDS = 30.0
"""How often it is written down who is still here."""
MAX_DEVICES = 16
"""Of one peer; one that names a new one at every moment must not fill the disk."""
MAX_STEP_SECONDS = 3600.0
"""Of a global step, for who lends a line: a paused run may take days to its next one."""
KEPT_TROUBLES = 50
"""Of each kind."""
CLOSING_MILLISECONDS = 2000
"""For whoever reads at that moment, such as for an export."""


@dataclass(frozen=True)
class _Guest:
    """A volunteer that is here, as its visit has it."""

    visit: int
    name: str
    team: str
    device: str
    client_mode: bool

    def is_like(self, peer: PeerSeen) -> bool:
        told = (peer.name, peer.team, peer.device, peer.client_mode)
        return (self.name, self.team, self.device, self.client_mode) == told


class Ledger(Reader):
    """Opens the file and creates it where needed; one instance may be used from several threads.

    :param clock: seconds since 1970: when things became known here
    :param answers: tokens, once for each expert that they go to, of one sample of the run; 0 if it has no experts
    """

    def __init__(
        self, path: Path, *, read_only: bool = False, clock: Callable[[], float] = time.time, answers: int = 0
    ) -> None:
        super().__init__(clock)
        self._path, self._read_only, self._answers = path, read_only, answers
        self._guests: dict[str, _Guest] = {}
        self._looked = self._marked = -math.inf  # when they were seen last, and when that was written down
        try:
            self._connection = self._open(read_only)
        except sqlite3.OperationalError as error:
            fix = "check that the folder exists and that you may write to it"
            if read_only:
                fix = "check that the coordinator has started and that you may read its folder"
            raise UserError(f"{path}: the ledger cannot be opened ({error}); {fix}") from None
        except sqlite3.DatabaseError as error:
            raise UserError(f"{path} is not a ledger ({error}); move it away or choose another folder") from None
        self._file = _file_at(path)

    @property
    def path(self) -> Path:
        return self._path

    @property
    def replaced(self) -> bool:
        """Whether another file lies in the place of the one that is open here."""
        return _file_at(self._path) not in (None, self._file)

    def copy(self, path: Path, known: Newest = NOTHING) -> Newest:
        """Write all that is recorded to another file, at once, if it is whole; returns how far that goes.

        Raises UserError if that fails; then the other file is as it was.

        :param known: a step that must be among it
        """
        fresh = path.with_name(f".{path.name}.tmp")
        try:
            with self._lock:
                back_up(self._connection, fresh)
            check_file(fresh, known, finished=True)
            found = newest(fresh, finished=True)
            os.replace(fresh, path)
            return found
        except Damaged as error:
            raise UserError(
                f"{self._path} is damaged ({error}), and its copy {path} stays as it was; stop the coordinator and "
                "start it again: it goes on from the copy"
            ) from None
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{path}: the ledger's copy cannot be written ({error})") from None

    def record_step(self, step: GlobalStep, contributions: Mapping[str, Contribution]) -> None:
        """Record a finished global step with the contributions known by then; a second time changes nothing.

        If another all-reduce led to this step before, that history was lost with those who knew it: it is forgotten.
        """
        with self._transaction():
            query = "SELECT 1 FROM steps WHERE step = ? AND round != ?"
            if self._connection.execute(query, (step.step, step.round)).fetchone() is not None:
                self._rewind(step.step - 1)
            left_out = None if step.left_out is None else step.left_out.model_dump_json(exclude_defaults=True)
            added = self._connection.execute(
                "INSERT OR IGNORE INTO steps VALUES (:step, :round, :time, :samples, :loss, :peers, :seconds,"
                " :compute, :gather, :average, :apply, :left_out)",
                {**step.model_dump(), "left_out": left_out},
            ).rowcount
            if added and step.left_out is not None:
                self._count("left out", step.left_out.count)
            if added:
                self._add_carried(step)
            for peer, contribution in contributions.items():
                self._add(peer, contribution)

    def fill_gaps(self, contributions: Mapping[str, Contribution]) -> None:
        """Record what peers say they gave to steps that are missing here.

        A signature only proves who says so, and anyone may make a key. So a peer is believed if it has given to a step
        whose members have told of it, and for steps before the newest one.
        """
        newest, met = self.last_step(), self.met()
        for peer, contribution in contributions.items():
            if contribution.samples and 1 <= contribution.step < newest and peer in met:
                self.record_contribution(peer, contribution)

    def record_contribution(self, peer: str, contribution: Contribution) -> None:
        """Record what a peer says it gave to a step that is missing here, in any order; twice is as good as once."""
        with self._transaction():
            if self._connection.execute("SELECT 1 FROM steps WHERE step = ?", (contribution.step,)).fetchone() is None:
                self._add(peer, contribution)

    def record_evaluation(self, step: int, evaluation: Evaluation, time: float) -> None:
        """Record an evaluation at a step. A loss that is not finite is no point on a curve: it is left out.

        One on other held-out data than those before begins the curve anew, and what was measured of the start is
        forgotten.
        """
        if not math.isfinite(evaluation.loss):
            return
        values = evaluation.model_dump(exclude={"pictures"})
        row = (step, evaluation.loss, time, json.dumps(values["metrics"]), json.dumps(values["samples"]))
        with self._transaction():
            execute = self._connection.execute
            if self.measured_on_other(evaluation):
                execute("INSERT OR REPLACE INTO former_evaluations SELECT * FROM evaluations")
                execute("DELETE FROM evaluations")
                execute("DELETE FROM start")
            execute("INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?)", (*row, evaluation.held_out))
            pictures = [(picture.digest, picture.pixels) for picture in evaluation.pictures]
            self._connection.executemany("INSERT OR IGNORE INTO pictures VALUES (?, ?)", pictures)

    def record_suites(self, scores: Iterable[SuiteScore]) -> None:
        """Record scores by standard suites; one of the same suite, model and step takes the place of the one before."""
        columns = ":metric, :model, :step, :time, :questions, :mean, :spread"
        with self._transaction():
            self._connection.executemany(
                f"INSERT OR REPLACE INTO suites VALUES ({columns})", [asdict(each) for each in scores]
            )

    def record_start(self, start: StartPoint | None) -> None:
        """Record what the run goes on from in place of what was recorded of it before."""
        with self._transaction():
            self._connection.execute("DELETE FROM start")
            if start is not None:
                self._connection.execute("INSERT INTO start VALUES (?, ?, ?)", (start.run_id, start.model, start.loss))

    def record_presence(self, peers: Iterable[PeerSeen]) -> None:
        """Note who is here now, for the visits and the time given. Called often: most calls write nothing.

        Followers are no guests. Of whoever leaves without having given a sample nothing stays.
        """
        now = self._clock()
        volunteers = {peer.peer: peer for peer in peers if not peer.follower}
        slept = not 0 <= now - self._looked < ABSENCE_SECONDS  # or the clock was put right
        staying = {peer: guest for peer, guest in self._guests.items() if peer in volunteers and not slept}
        left = self._guests.keys() - staying.keys()
        new = [v for peer, v in volunteers.items() if peer not in staying or not staying[peer].is_like(v)]
        if new or left or not 0 <= now - self._marked < MARK_SECONDS:
            with self._transaction():
                for peer in left:
                    self._mark(peer, self._guests[peer].visit, self._looked)
                    self._see_off(peer, self._guests[peer].visit)
                for peer, guest in staying.items():
                    self._mark(peer, guest.visit, now)
                staying |= {volunteer.peer: self._welcome(volunteer, now) for volunteer in new}
            self._guests, self._marked = staying, now
        self._looked = now

    def record_trouble(self, kind: TroubleKind, text: str, *, step: int | None = None, count: int = 1) -> None:
        """Count something that went wrong; the last ones are kept, for all to read.

        :param text: stands for `count` of them
        """
        with self._transaction():
            execute = self._connection.execute
            self._count(kind, count)
            execute("INSERT INTO troubles VALUES (NULL, ?, ?, ?, ?)", (kind, self._clock(), step, without_hosts(text)))
            execute(
                "DELETE FROM troubles WHERE kind = ?1 AND id NOT IN"
                " (SELECT id FROM troubles WHERE kind = ?1 ORDER BY id DESC LIMIT ?2)",
                (kind, KEPT_TROUBLES),
            )

    def record_convictions(self, in_force: Iterable[Conviction]) -> None:
        """Let these hold and no others: what is not among them any more was lifted. Nothing new writes nothing."""
        given = {(each.peer, each.time): each for each in in_force}
        holding = {(each.peer, each.time): each for each in self._convictions("WHERE lifted IS NULL")}
        if given.keys() == holding.keys():
            return
        lifted = [replace(holding[key], lifted=self._clock()) for key in holding.keys() - given.keys()]
        self.take_convictions([*(given[key] for key in given.keys() - holding.keys()), *lifted])

    def take_convictions(self, told: Iterable[Conviction]) -> None:
        """Record these as they are; those of which nothing is told stay as they were. Nothing new writes nothing."""
        known = {(each.peer, each.time): each.lifted for each in self._convictions()}
        news = [each for each in told if known.get((each.peer, each.time), -1.0) != each.lifted]
        if not news:
            return
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO convictions VALUES (:peer, :time, :name, :why, :lifted, :last_passed)"
                " ON CONFLICT DO UPDATE SET lifted = :lifted",
                [asdict(each) for each in news],
            )
            for peer in {each.peer for each in news}:
                withdraw(self._connection, peer)

    def adopt(self, contributors: Iterable[Contributor]) -> None:
        """Count what was given before this ledger began, as another one of the run has it. An empty ledger only."""
        rows = [(c.peer, c.name, c.samples, c.steps, c.first_seen, c.last_seen) for c in contributors]
        with self._transaction():
            # No peer can name this session: those of peers are hexadecimal.
            self._connection.executemany("INSERT INTO parts VALUES (NULL, ?, 'earlier', ?, 0, 0, ?, ?, ?, ?)", rows)
            self._connection.executemany(
                "INSERT INTO people (peer, name, samples, steps, sessions, first_seen, last_seen)"
                " VALUES (?, ?, ?, ?, 1, ?, ?)",
                rows,
            )

    def close(self) -> None:
        """Close the file, and note until when everyone was here; a second time does nothing.

        Whoever copies the one file has everything, although readers are there for whom its log stays beside it.
        """
        guests, self._guests = self._guests, {}
        if guests:
            with suppress(UserError), self._transaction():
                for peer, guest in guests.items():
                    self._mark(peer, guest.visit, self._looked)
        if not self._read_only:
            with suppress(sqlite3.Error), self._lock:
                self._connection.execute(f"PRAGMA busy_timeout = {CLOSING_MILLISECONDS}")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        super().close()

    def _open(self, read_only: bool) -> sqlite3.Connection:
        uri = f"file:{quote(str(self._path.absolute()))}?mode={'ro' if read_only else 'rwc'}"
        # Autocommit mode: transactions are written out. Threads take turns with our lock.
        connection = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            if not read_only:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                prepare(connection)
            check(connection, self._path)
            if not read_only:
                connection.execute("UPDATE visits SET here = 0 WHERE here")  # of a coordinator that was killed
        except BaseException:
            connection.close()
            raise
        return connection

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
            except sqlite3.IntegrityError:
                raise
            except sqlite3.DatabaseError as error:
                raise UserError(
                    f"{self._path} is damaged ({error}); stop the coordinator and start it again: it goes on from the "
                    "ledger's copy"
                ) from None

    def _count(self, kind: str, more: int) -> None:
        self._connection.execute(
            "INSERT INTO counts VALUES (?1, ?2) ON CONFLICT (kind) DO UPDATE SET count = min(?3, count + ?2)",
            (kind, more, MAX_SAMPLES),
        )

    def _add(self, peer: str, contribution: Contribution) -> None:
        execute = self._connection.execute
        samples, seen = contribution.samples, contribution.session_samples
        parts = execute(
            "SELECT id, base, until FROM parts WHERE peer = ? AND session = ? ORDER BY base DESC",
            (peer, contribution.session),
        ).fetchall()
        # Counters only grow, so the part is the newest that began below this count. Nothing given: the newest.
        fitting = (row for row in parts if seen > row[1] or row[1] == 0 or samples == 0)
        part, _, until = next(fitting, (None, 0, None))
        if until is not None and contribution.step > until:
            return  # delivered again, or late, after a rewind forgot that step
        if part is None:
            part = execute(
                "INSERT INTO parts VALUES (NULL, ?, ?, ?, 0, NULL, 0, 0, ?, ?)",
                (peer, contribution.session, contribution.name, contribution.time, contribution.time),
            ).lastrowid
        assert part is not None
        added = execute(
            "INSERT OR IGNORE INTO contributions VALUES (?, ?, ?, ?, ?, ?)",
            (contribution.step, part, samples, seen, contribution.loss, contribution.time),
        )
        if added.rowcount:
            execute(
                "UPDATE parts SET name = iif(?1 >= last_seen, ?2, name), first_seen = min(first_seen, ?1),"
                " last_seen = max(last_seen, ?1), steps = steps + ?3 WHERE id = ?4",
                (contribution.time, contribution.name, samples > 0, part),
            )
            query = "SELECT 1 FROM contributions WHERE part = ? AND step > ?"
            if execute(query, (part, contribution.step)).fetchone() is not None:
                self._recount(part)  # what was missing before a later one is here now
            else:
                new = credited(self._connection, part, contribution.step)
                execute("UPDATE parts SET samples = min(samples + ?, ?) WHERE id = ?", (new, MAX_SAMPLES, part))
            self._settle(peer)
            if contribution.answered and self._answers:
                confirm(self._connection, peer, contribution, self._answers, self._clock())

    def _add_carried(self, step: GlobalStep) -> None:
        """For as long as the step took since the one before, each of them lent its line."""
        parts = [part for part in (step.compute, step.gather, step.average, step.apply) if part is not None]
        seconds = min(MAX_STEP_SECONDS, max(step.seconds, sum(parts)))
        for peer, carried in step.carried.items():
            self._connection.execute(
                "INSERT INTO lenders VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5) ON CONFLICT (peer) DO UPDATE SET name = ?2,"
                " bytes = min(bytes + ?3, ?6), seconds = seconds + ?4, steps = steps + 1, last_seen = ?5",
                (peer, carried.name, carried.bytes, seconds, self._clock(), MAX_SAMPLES),
            )

    def _settle(self, peer: str) -> None:
        """Bring the running sums of a peer up to date with its parts; what is new, or forgotten, is so as of now."""
        execute, now = self._connection.execute, self._clock()
        samples, steps, sessions, name = execute(
            "SELECT CAST(min(total(samples), ?1) AS INTEGER), sum(steps), count(DISTINCT iif(samples, session, NULL)),"
            " (SELECT name FROM parts WHERE peer = ?2 ORDER BY last_seen DESC LIMIT 1) FROM parts WHERE peer = ?2",
            (MAX_SAMPLES, peer),
        ).fetchone()
        row = execute("SELECT samples, recent, recent_time FROM people WHERE peer = ?", (peer,)).fetchone()
        before, recent, recent_time = row or (0, 0.0, now)
        new = samples - before
        recent = max(0.0, recent * decay(now - recent_time) + recent_average(new, age=0.0))
        execute(
            "INSERT INTO people (peer, name, samples, steps, sessions, first_seen, last_seen, recent, recent_time)"
            " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7, ?6) ON CONFLICT (peer) DO UPDATE SET"
            " name = ?2, samples = ?3, steps = ?4, sessions = ?5, last_seen = max(last_seen, ?6), recent = ?7,"
            " recent_time = ?6",
            (peer, name, samples, steps, sessions, now, recent),
        )
        execute(
            "INSERT INTO days VALUES (?1, ?2, max(0, ?3)) ON CONFLICT (peer, day) DO UPDATE SET"
            " samples = max(0, samples + ?3)",
            (peer, now // DAY_SECONDS, new),
        )
        execute("UPDATE visits SET samples = max(0, samples + ?) WHERE here AND peer = ?", (new, peer))
        withdraw(self._connection, peer)

    def _rewind(self, step: int) -> None:
        """Forget everything after this step."""
        execute = self._connection.execute
        cut = execute(
            "SELECT DISTINCT parts.id, peer, session, name, base, until,"
            " (SELECT max(session_samples) FROM contributions WHERE part = parts.id), last_seen"
            " FROM parts JOIN contributions ON part = parts.id WHERE step > ?",
            (step,),
        ).fetchall()
        execute("DELETE FROM steps WHERE step > ?", (step,))
        execute("DELETE FROM evaluations WHERE step > ?", (step,))
        execute("DELETE FROM former_evaluations WHERE step > ?", (step,))
        execute("DELETE FROM suites WHERE step > ?", (step,))
        execute("DELETE FROM contributions WHERE step > ?", (step,))
        for part, peer, session, name, base, until, seen, last_seen in cut:
            execute("UPDATE parts SET until = ? WHERE id = ?", (step, part))
            self._recount(part)
            if until is None and seen > base:  # the peer may still be there: count from here what it gives now
                execute(
                    "INSERT INTO parts VALUES (NULL, ?, ?, ?, ?, NULL, 0, 0, ?, ?)",
                    (peer, session, name, seen, last_seen, last_seen),
                )
            self._settle(peer)

    def _recount(self, part: int) -> None:
        """Derive a part's sums from the contributions that are left of it."""
        self._connection.execute(
            "UPDATE parts SET (samples, steps, first_seen, last_seen) ="
            " (SELECT ?1, count(nullif(contributions.samples, 0)),"
            " coalesce(min(time), first_seen), coalesce(max(time), last_seen)"
            " FROM contributions WHERE part = id) WHERE id = ?2",
            (credited(self._connection, part), part),
        )

    def _welcome(self, peer: PeerSeen, now: float) -> _Guest:
        """Begin the visit of a peer, or go on with that which it was on a moment ago."""
        execute = self._connection.execute
        execute(
            "INSERT INTO people (peer, name, team, first_seen, last_seen) VALUES (?1, ?2, ?3, ?4, ?4)"
            " ON CONFLICT (peer) DO UPDATE SET team = ?3, last_seen = max(last_seen, ?4)",
            (peer.peer, peer.name, peer.team, now),
        )
        execute(
            "INSERT OR IGNORE INTO devices SELECT ?1, ?2 WHERE (SELECT count(*) FROM devices WHERE peer = ?1) < ?3",
            (peer.peer, peer.device, MAX_DEVICES),
        )
        what = (peer.name, peer.device, "client" if peer.client_mode else "full")
        row = execute(
            "SELECT id FROM visits WHERE peer = ? AND until BETWEEN ? AND ? ORDER BY since DESC LIMIT 1",
            (peer.peer, now - ABSENCE_SECONDS, now + ABSENCE_SECONDS),
        ).fetchone()
        if row is not None:
            (visit,) = row
            execute("UPDATE visits SET name = ?, device = ?, mode = ?, here = 1 WHERE id = ?", (*what, visit))
            self._mark(peer.peer, visit, now)
        else:
            visit = execute(
                "INSERT INTO visits (peer, name, device, mode, since, until, here) VALUES (?, ?, ?, ?, ?, ?, 1)",
                (peer.peer, *what, now, now),
            ).lastrowid
        return _Guest(visit, peer.name, peer.team, peer.device, peer.client_mode)

    def _mark(self, peer: str, visit: int, seen: float) -> None:
        """A visit has lasted until then."""
        execute = self._connection.execute
        execute(
            "UPDATE people SET seconds = seconds + max(0, ?1 - (SELECT until FROM visits WHERE id = ?2)),"
            " last_seen = max(last_seen, ?1) WHERE peer = ?3",
            (seen, visit, peer),
        )
        execute("UPDATE visits SET until = max(until, ?) WHERE id = ?", (seen, visit))

    def _see_off(self, peer: str, visit: int) -> None:
        execute = self._connection.execute
        execute("UPDATE visits SET here = 0 WHERE id = ?", (visit,))
        if execute("DELETE FROM people WHERE peer = ? AND samples = 0", (peer,)).rowcount:
            execute("DELETE FROM visits WHERE peer = ?", (peer,))
            execute("DELETE FROM devices WHERE peer = ?", (peer,))


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file lies there now; none if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
