"""What counts to the credit of those who host experts: what trainers sign for, never what a host says.

A trainer can bring no more to hosts than its own samples explain, whatever it says and whoever is its friend: each
sample has so many tokens, each of which goes to so many experts. So after a rewind nothing counts until there are as
many samples again. Nobody confirms itself.
"""

import sqlite3
from collections.abc import Mapping

from dedloc_kit.ledger.schema import MAX_SAMPLES
from dedloc_kit.records.steps import Contribution


def confirm(connection: sqlite3.Connection, trainer: str, said: Contribution, answers: int, now: float) -> None:
    """Bring to the credit of hosts what a trainer's contribution, which is recorded already, says beyond what is
    counted. What its samples do not explain yet counts with a later one.

    :param answers: tokens, once for each expert that they go to, of one sample
    """
    query = "SELECT host, tokens FROM answered WHERE trainer = ? AND session = ?"
    counted = dict(connection.execute(query, (trainer, said.session)).fetchall())
    names = _names(connection, said.answered)
    more = {
        host: tokens - counted.get(host, 0)
        for host, tokens in said.answered.items()
        if host != trainer and host in names and tokens > counted.get(host, 0)
    }
    total, left = sum(more.values()), _left(connection, trainer, answers)
    for host, tokens in more.items():
        new = tokens if total <= left else tokens * left // total
        if not new:
            continue
        connection.execute(
            "INSERT INTO answered VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET tokens = tokens + ?4",
            (trainer, said.session, host, new),
        )
        connection.execute(
            "INSERT INTO hosts VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT DO UPDATE SET name = ?2,"
            " tokens = min(tokens + ?3, ?5), last_seen = ?4",
            (host, names[host], new, now, MAX_SAMPLES),
        )


def _left(connection: sqlite3.Connection, trainer: str, answers: int) -> int:
    """Tokens that the samples to a trainer's credit explain, and that are not counted yet."""
    query = "SELECT samples - withdrawn FROM people WHERE peer = ?"
    samples: int = (connection.execute(query, (trainer,)).fetchone() or (0,))[0]
    query = "SELECT tokens FROM answered WHERE trainer = ?"
    counted: int = sum(tokens for (tokens,) in connection.execute(query, (trainer,)))  # too many for a sum of SQLite's
    return min(MAX_SAMPLES, max(0, samples * answers - counted))


def _names(connection: sqlite3.Connection, hosts: Mapping[str, int]) -> dict[str, str]:
    """Of those of them who have been here: a trainer may name anybody."""
    marks, names = ",".join("?" * len(hosts)), dict[str, str]()
    for table in ("hosts", "people"):
        query = f"SELECT peer, name FROM {table} WHERE peer IN ({marks})"
        names |= dict(connection.execute(query, tuple(hosts)).fetchall())
    return names
