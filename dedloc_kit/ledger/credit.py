"""What counts to whose credit.

Of a peer whose conviction holds nothing does that it gave after its work was found to be right for the last time. It
stays in the sums of the run, for it did go into the model.
"""

import sqlite3

from dedloc_kit.ledger.schema import MAX_SAMPLES


def credited(connection: sqlite3.Connection, part: int, since: int = 0) -> int:
    """What a part gave to the steps from `since` on.

    Its counter is believed only as to steps that are missing here: of all others their members have told.
    """
    query = """
        WITH given AS (
            SELECT step, contributions.samples AS samples, lag(step, 1, 0) OVER earlier AS before,
            session_samples - lag(session_samples, 1, base) OVER earlier AS counted
            FROM contributions JOIN parts ON part = id WHERE part = ?1 AND step >=
            (SELECT coalesce(max(step), 0) FROM contributions WHERE part = ?1 AND step < ?2)
            WINDOW earlier AS (ORDER BY step)
        ), judged AS (
            SELECT samples, counted, step - before - 1 >
            (SELECT count(*) FROM steps WHERE steps.step > before AND steps.step < given.step) AS some_missing
            FROM given WHERE step >= ?2
        )
        SELECT CAST(min(total(iif(some_missing, max(samples, counted), samples)), ?3) AS INTEGER) FROM judged"""
    found: int = connection.execute(query, (part, since, MAX_SAMPLES)).fetchone()[0]
    return found


def withdraw(connection: sqlite3.Connection, peer: str) -> None:
    """Bring up to date what is not to the credit of a peer, after its contributions or its convictions have changed."""
    query = "SELECT min(last_passed) FROM convictions WHERE peer = ? AND lifted IS NULL"
    (last_passed,) = connection.execute(query, (peer,)).fetchone()
    samples = steps = 0
    if last_passed is not None:
        query = (
            "SELECT id, (SELECT count(*) FROM contributions WHERE part = id AND step > ? AND contributions.samples > 0)"
            " FROM parts WHERE peer = ?"
        )
        for part, given_to in connection.execute(query, (last_passed, peer)).fetchall():
            samples, steps = samples + credited(connection, part, last_passed + 1), steps + given_to
    connection.execute(
        "UPDATE people SET withdrawn = min(samples, ?), withdrawn_steps = ? WHERE peer = ?",
        (min(samples, MAX_SAMPLES), steps, peer),
    )
