"""The tables of the ledger.

`steps`, `contributions` and `evaluations` are what happened, `parts` what one session of a peer gave between two
rewinds (see `ledger`). `people` and `days` are running sums of the contributions and `visits`, kept in the same
transaction, so that the page never has to scan these. `troubles` holds the newest of each kind, `counts` how many there
were. `convictions` follows the organizer's orders. All times are the coordinator's, but for those in `parts` and
`contributions`: they are what a peer's clock said.
"""

import sqlite3
from pathlib import Path

from dedloc_kit.errors import UserError

APPLICATION = 0x44454C43  # "DELC": tells our files from other people's SQLite files
DAY_SECONDS = 86_400.0
HALF_LIFE_SECONDS = 7 * DAY_SECONDS
MAX_SAMPLES = 2**53
"""Sums end here: beyond it no program that reads JSON would see the same number."""

VERSION = 12
"""Of these tables. Nothing brings earlier ones up to date: a run goes on with the kit that it began with."""
EARLIER = "0.4.0"
"""The last version of the kit that made tables of version 11."""
EARLIEST = "0.2.0"
"""The last one that made tables of a version before that; it reads all of these."""

_TABLES = """
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, round TEXT NOT NULL, time REAL NOT NULL, samples INTEGER NOT NULL,
    loss REAL, peers INTEGER NOT NULL, seconds REAL NOT NULL,
    -- Seconds: where the time of the step went, as far as the coordinator saw it.
    compute REAL, gather REAL, average REAL, apply REAL,
    left_out TEXT  -- JSON (records.LeftOut), null where nobody was left out
);
CREATE INDEX steps_left_out ON steps (step) WHERE left_out IS NOT NULL;
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
CREATE INDEX contributions_of_part ON contributions (part, step, loss);
CREATE TABLE evaluations (
    step INTEGER PRIMARY KEY, loss REAL NOT NULL, time REAL NOT NULL,
    metrics TEXT NOT NULL, samples TEXT NOT NULL,  -- JSON
    held_out TEXT NOT NULL  -- a hash of the held-out data that it was measured on; empty: not known
);
-- Those on held-out data that is no longer the run's.
CREATE TABLE former_evaluations (
    step INTEGER NOT NULL, loss REAL NOT NULL, time REAL NOT NULL, metrics TEXT NOT NULL, samples TEXT NOT NULL,
    held_out TEXT NOT NULL, PRIMARY KEY (held_out, step)
) WITHOUT ROWID;
-- Scores by standard suites: of the run's own model after a global step (model is empty), and of published ones (step
-- is 0), which a rewind does not change.
CREATE TABLE suites (
    metric TEXT NOT NULL,  -- in words, with the task
    model TEXT NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL,
    questions INTEGER NOT NULL, mean REAL NOT NULL, spread REAL,  -- the standard error of the mean
    PRIMARY KEY (metric, model, step)
) WITHOUT ROWID;
-- Those that samples name: each is here once, however many evaluations show it.
CREATE TABLE pictures (digest TEXT PRIMARY KEY, pixels BLOB NOT NULL) WITHOUT ROWID;
-- The model that the run goes on from, as it was published, on the held-out data; one row at most.
CREATE TABLE start (run_id TEXT PRIMARY KEY, model TEXT NOT NULL, loss REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE people (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, team TEXT NOT NULL DEFAULT '',
    samples INTEGER NOT NULL DEFAULT 0, steps INTEGER NOT NULL DEFAULT 0, sessions INTEGER NOT NULL DEFAULT 0,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL,
    recent REAL NOT NULL DEFAULT 0,       -- samples a day, as of recent_time
    recent_time REAL NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,      -- the length of all visits
    -- Of samples and steps, what is not to its credit while a conviction holds.
    withdrawn INTEGER NOT NULL DEFAULT 0, withdrawn_steps INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE devices (peer TEXT NOT NULL, device TEXT NOT NULL, PRIMARY KEY (peer, device)) WITHOUT ROWID;
CREATE TABLE days (
    peer TEXT NOT NULL, day INTEGER NOT NULL,  -- since 1970, UTC
    samples INTEGER NOT NULL, PRIMARY KEY (peer, day)
) WITHOUT ROWID;
CREATE TABLE visits (
    id INTEGER PRIMARY KEY, peer TEXT NOT NULL, name TEXT NOT NULL, device TEXT NOT NULL, mode TEXT NOT NULL,
    since REAL NOT NULL, until REAL NOT NULL,  -- when the peer was seen last, if it is not here
    here INTEGER NOT NULL, samples INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX visits_of_peer ON visits (peer, since);
CREATE INDEX visits_by_time ON visits (since);
CREATE INDEX visits_here ON visits (peer, since) WHERE here;
CREATE TABLE troubles (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, time REAL NOT NULL, step INTEGER, text TEXT NOT NULL
);
CREATE TABLE counts (kind TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
-- Who was found to cheat, and when the organizer let it in again; a rewind forgets none of it.
CREATE TABLE convictions (
    peer TEXT NOT NULL, time REAL NOT NULL, name TEXT NOT NULL, why TEXT NOT NULL, lifted REAL,
    last_passed INTEGER,  -- the global step up to which its work was found to be right; null: not known
    PRIMARY KEY (peer, time)
) WITHOUT ROWID;
CREATE INDEX convictions_by_time ON convictions (time);
-- Who lent a line: sums of the steps that the coordinator took part in; a rewind forgets none of it.
CREATE TABLE lenders (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, bytes INTEGER NOT NULL, seconds REAL NOT NULL, steps INTEGER NOT NULL,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL
) WITHOUT ROWID;
-- Who hosted experts: tokens that trainers confirm, as far as their own samples explain them; a rewind forgets none.
CREATE TABLE hosts (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, tokens INTEGER NOT NULL,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL
) WITHOUT ROWID;
-- What of it has been counted by the word of a trainer's session.
CREATE TABLE answered (
    trainer TEXT NOT NULL, session TEXT NOT NULL, host TEXT NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (trainer, session, host)
) WITHOUT ROWID
"""


class UnreadyLedger(UserError):
    """The file is there, its tables are not: the coordinator is about to make them."""


def recent_average(samples: float, age: float) -> float:
    """What samples given so many seconds ago are in a recent average: samples a day, with a half-life of a week.

    As BOINC's recent average credit (`update_average` in lib/util.cpp): whoever gives at a steady rate arrives at it.
    """
    return samples * 0.6931471805599453 * DAY_SECONDS / HALF_LIFE_SECONDS * decay(age)


def decay(age: float) -> float:
    """What is left of a recent average after so many seconds."""
    return float(0.5 ** (max(0.0, age) / HALF_LIFE_SECONDS))


def prepare(connection: sqlite3.Connection) -> None:
    """Create the tables in an empty database, all or none; any other stays as it is."""
    connection.execute("BEGIN IMMEDIATE")
    *_, is_empty = _marks(connection)
    if is_empty:
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises UserError if this is not a ledger of this version."""
    application, _, is_empty = _marks(connection)
    if application == 0 and is_empty:
        raise UnreadyLedger(f"{path} is still empty; wait until the coordinator has started")
    if application != APPLICATION:
        raise UserError(f"{path} is a database of something else; move it away or choose another folder")
    check_version(connection, path)


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raises UserError if this is a ledger of another version."""
    application, version, _ = _marks(connection)
    if application == APPLICATION and version != VERSION:
        raise UserError(f"{path} {of_another_version(version)}")


def of_another_version(version: int) -> str:
    """What to do about tables of another version than these, to go on from the name of the file."""
    if version > VERSION:
        return "was made by a newer version of dedloc_kit; upgrade this installation"
    kit = EARLIER if version == 11 else EARLIEST
    return (
        f"was made by an earlier version of dedloc_kit (tables of version {version}, here {VERSION}); go on with "
        f"dedloc_kit {kit}, which reads and exports it, or move it away to begin a new one"
    )


def _marks(connection: sqlite3.Connection) -> tuple[int, int, bool]:
    """Whose database this is, of which version, and whether it is empty; all as of one moment."""
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)"
        " FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    return application, version, tables == 0
