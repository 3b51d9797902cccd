"""The tables of the ledger.

`steps`, `contributions` and `evaluations` are what happened, `parts` what one session of a peer gave between two
rewinds (see `ledger`). `people` and `days` are running sums of the contributions and `visits`, kept in the same
transaction, so that the page never has to scan these. `troubles` holds the newest of each kind, `counts` how many there
were. `convictions` follows the organizer's orders. All times are the coordinator's, but for those in `parts` and
`contributions`: they are what a peer's clock said.
"""

import sqlite3
import time
from pathlib import Path

from dedloc_kit.errors import UserError

APPLICATION = 0x44454C43  # "DELC": tells our files from other people's SQLite files
DAY_SECONDS = 86_400.0
HALF_LIFE_SECONDS = 7 * DAY_SECONDS
MAX_SAMPLES = 2**53
"""Sums end here: beyond it no program that reads JSON would see the same number."""

_VERSION_1 = """
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
CREATE TABLE evaluations (step INTEGER PRIMARY KEY, loss REAL NOT NULL, time REAL NOT NULL);
"""
_VERSION_2 = """
-- Both are JSON.
ALTER TABLE evaluations ADD COLUMN metrics TEXT NOT NULL DEFAULT '{}';
ALTER TABLE evaluations ADD COLUMN samples TEXT NOT NULL DEFAULT '[]';
"""
_VERSION_3 = f"""
-- Seconds: where the time of the step went, as far as the coordinator saw it.
ALTER TABLE steps ADD COLUMN compute REAL;
ALTER TABLE steps ADD COLUMN gather REAL;
ALTER TABLE steps ADD COLUMN average REAL;
ALTER TABLE steps ADD COLUMN apply REAL;
CREATE INDEX contributions_of_part ON contributions (part, step, loss);
CREATE TABLE people (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, team TEXT NOT NULL DEFAULT '',
    samples INTEGER NOT NULL DEFAULT 0, steps INTEGER NOT NULL DEFAULT 0, sessions INTEGER NOT NULL DEFAULT 0,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL,
    recent REAL NOT NULL DEFAULT 0,       -- samples a day, as of recent_time
    recent_time REAL NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0       -- the length of all visits
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
INSERT INTO people (peer, name, samples, steps, sessions, first_seen, last_seen)
    SELECT peer, (SELECT name FROM parts AS newest WHERE newest.peer = parts.peer ORDER BY last_seen DESC LIMIT 1),
    CAST(min(total(samples), {MAX_SAMPLES}) AS INTEGER), sum(steps), count(DISTINCT session),
    min(first_seen), max(last_seen) FROM parts WHERE samples > 0 GROUP BY peer;
INSERT INTO days
    SELECT peer, CAST(steps.time / {DAY_SECONDS} AS INTEGER) AS day,
    CAST(min(total(contributions.samples), {MAX_SAMPLES}) AS INTEGER)
    FROM contributions JOIN parts ON parts.id = part JOIN steps USING (step)
    WHERE contributions.samples > 0 GROUP BY peer, day;
UPDATE people SET recent_time = now(), recent = (
    SELECT total(recent_average(samples, now() - {DAY_SECONDS} * (day + 0.5))) FROM days WHERE days.peer = people.peer
);
"""
_VERSION_4 = """
-- Those that samples name: each is here once, however many evaluations show it.
CREATE TABLE pictures (digest TEXT PRIMARY KEY, pixels BLOB NOT NULL) WITHOUT ROWID;
"""
_VERSION_5 = """
-- The model that the run goes on from, as it was published, on the held-out data; one row at most.
CREATE TABLE start (run_id TEXT PRIMARY KEY, model TEXT NOT NULL, loss REAL NOT NULL) WITHOUT ROWID;
"""
_VERSION_6 = """
-- JSON (records.LeftOut), null where nobody was left out.
ALTER TABLE steps ADD COLUMN left_out TEXT;
CREATE INDEX steps_left_out ON steps (step) WHERE left_out IS NOT NULL;
"""
_VERSION_7 = """
-- Who was found to cheat, and when the organizer let it in again; a rewind forgets none of it.
CREATE TABLE convictions (
    peer TEXT NOT NULL, time REAL NOT NULL, name TEXT NOT NULL, why TEXT NOT NULL, lifted REAL,
    PRIMARY KEY (peer, time)
) WITHOUT ROWID;
CREATE INDEX convictions_by_time ON convictions (time);
"""
_VERSION_8 = """
-- The global step up to which its work was found to be right; null: not known, and all is to its credit.
ALTER TABLE convictions ADD COLUMN last_passed INTEGER;
-- Of samples and steps, what is not to its credit while a conviction holds.
ALTER TABLE people ADD COLUMN withdrawn INTEGER NOT NULL DEFAULT 0;
ALTER TABLE people ADD COLUMN withdrawn_steps INTEGER NOT NULL DEFAULT 0;
"""
_VERSION_9 = """
-- Who lent a line: sums of the steps that the coordinator took part in; a rewind forgets none of it.
CREATE TABLE lenders (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, bytes INTEGER NOT NULL, seconds REAL NOT NULL, steps INTEGER NOT NULL,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL
) WITHOUT ROWID;
"""
_VERSION_10 = """
-- Who hosted experts: tokens that trainers confirm, as far as their own samples explain them; a rewind forgets none.
CREATE TABLE hosts (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, tokens INTEGER NOT NULL,
    first_seen REAL NOT NULL, last_seen REAL NOT NULL
) WITHOUT ROWID;
-- What of it has been counted by the word of a trainer's session.
CREATE TABLE answered (
    trainer TEXT NOT NULL, session TEXT NOT NULL, host TEXT NOT NULL, tokens INTEGER NOT NULL,
    PRIMARY KEY (trainer, session, host)
) WITHOUT ROWID;
"""
_VERSION_11 = """
-- A hash of the held-out data that it was measured on; empty: not known.
ALTER TABLE evaluations ADD COLUMN held_out TEXT NOT NULL DEFAULT '';
-- Those on held-out data that is no longer the run's.
CREATE TABLE former_evaluations (
    step INTEGER NOT NULL, loss REAL NOT NULL, time REAL NOT NULL, metrics TEXT NOT NULL, samples TEXT NOT NULL,
    held_out TEXT NOT NULL, PRIMARY KEY (held_out, step)
) WITHOUT ROWID;
"""
VERSIONS = (
    *(_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5, _VERSION_6, _VERSION_7, _VERSION_8),
    *(_VERSION_9, _VERSION_10, _VERSION_11),
)
VERSION = len(VERSIONS)
"""What each version added to the one before."""


class UnreadyLedger(UserError):
    """The file is there, its tables are not, or are those of before: the coordinator is about to make them."""


def recent_average(samples: float, age: float) -> float:
    """What samples given so many seconds ago are in a recent average: samples a day, with a half-life of a week.

    As BOINC's recent average credit (`update_average` in lib/util.cpp): whoever gives at a steady rate arrives at it.
    """
    return samples * 0.6931471805599453 * DAY_SECONDS / HALF_LIFE_SECONDS * decay(age)


def decay(age: float) -> float:
    """What is left of a recent average after so many seconds."""
    return float(0.5 ** (max(0.0, age) / HALF_LIFE_SECONDS))


def prepare(connection: sqlite3.Connection, target: int = VERSION) -> None:
    """Create the tables in an empty database, or bring those of an earlier version up to date: all or none.

    :param target: the version that they are to have, for a copy of a ledger of then
    """
    connection.create_function("now", 0, time.time)
    connection.create_function("recent_average", 2, recent_average, deterministic=True)
    connection.execute("BEGIN IMMEDIATE")
    application, version, is_empty = _marks(connection)
    if is_empty or (application == APPLICATION and version < target):
        for script in VERSIONS[version if application else 0 : target]:
            for statement in script.strip().removesuffix(";").split(";\n"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {target}")
    connection.execute("COMMIT")


def check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises UserError if this is not a ledger of this version."""
    application, version, is_empty = _marks(connection)
    if application == 0 and is_empty:
        raise UnreadyLedger(f"{path} is still empty; wait until the coordinator has started")
    if application != APPLICATION:
        raise UserError(f"{path} is a database of something else; move it away or choose another folder")
    if version > VERSION:
        raise UserError(f"{path} was made by a newer version of dedloc_kit; upgrade this installation")
    if version < VERSION:
        raise UnreadyLedger(f"{path} was made by an earlier version; wait until the coordinator has started")


def _marks(connection: sqlite3.Connection) -> tuple[int, int, bool]:
    """Whose database this is, of which version, and whether it is empty; all as of one moment."""
    application, version, tables = connection.execute(
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema)"
        " FROM pragma_application_id, pragma_user_version"
    ).fetchone()
    return application, version, tables == 0
