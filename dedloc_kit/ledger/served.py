"""The ledger of a swarm that serves a model: what each server has computed for others, in tokens times layers.

It is beside the ledger of a training run and knows no samples: the two are never added.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from dedloc_kit.errors import UserError
from dedloc_kit.serving.offer import Serving
from dedloc_kit.serving.receipts import Receipt

LEDGER_FILE = "ledger.sqlite"
"""In the folder of whoever began the swarm."""
APPLICATION = 0x44454C53  # "DELS"
MAX_RECEIPTS = 1024
"""Of one server that are remembered at a time."""
RECEIPT_SECONDS = 2 * 86_400.0
"""For so long a receipt is remembered; who counts it takes none that is nearly as old."""
MAX_COUNT = 2**53
"""Sums end here: beyond it no program that reads JSON would see the same number."""

_TABLES = """
CREATE TABLE servers (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, team TEXT NOT NULL,
    tokens_layers INTEGER NOT NULL, since REAL NOT NULL, last REAL NOT NULL
) WITHOUT ROWID;
-- What has been counted of the newest receipt of a client's session for a server's.
CREATE TABLE receipts (
    server TEXT NOT NULL, server_session TEXT NOT NULL, client TEXT NOT NULL, session TEXT NOT NULL,
    tokens_layers INTEGER NOT NULL, last REAL NOT NULL,
    PRIMARY KEY (server, server_session, client, session)
) WITHOUT ROWID;
CREATE INDEX receipts_by_time ON receipts (last)
"""


@dataclass(frozen=True)
class ServingCredit:
    """What one server has computed for others; times are seconds since 1970, by the organizer's clock."""

    peer: str
    name: str
    """As it calls itself, which a view escapes; `team` as well."""
    team: str
    tokens_layers: int
    since: float
    last: float


class ServingLedger:
    """Opens the file in this folder and creates it where needed; one instance may be used from several threads.

    Raises UserError if that is not possible, and sqlite3.Error if it cannot be written later.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        path = folder / LEDGER_FILE
        self._clock, self._lock = clock, threading.Lock()
        try:
            self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            if not _is_ours(self._connection):
                self._connection.close()
                raise UserError(f"{path} is a database of something else; move it away or choose another folder")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                if not _application(self._connection):
                    for statement in _TABLES.split(";\n"):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA application_id = {APPLICATION}")
        except sqlite3.Error as error:
            raise UserError(f"{path}: the ledger cannot be opened ({error}); choose another folder") from None

    def count(self, server: str, offer: Serving, client: str, receipt: Receipt, most: int) -> int:
        """Bring to a server's credit what a client's receipt says beyond what is counted of it, at most so much.

        Returns how much that was. The rest counts with a later receipt, if that may be more.

        :param offer: what the server says of itself now
        """
        now, place = self._clock(), (server, receipt.server_session, client, receipt.session)
        with self._transaction():
            self._connection.execute("DELETE FROM receipts WHERE last < ?", (now - RECEIPT_SECONDS,))
            query = "SELECT count(*) FROM receipts WHERE server = ?"
            (remembered,) = self._connection.execute(query, (server,)).fetchone()
            query = "SELECT tokens_layers FROM receipts WHERE (server, server_session, client, session) = (?, ?, ?, ?)"
            (counted,) = self._connection.execute(query, place).fetchone() or (None,)
            added = min(receipt.tokens_layers - (counted or 0), most)
            if added <= 0 or (counted is None and remembered >= MAX_RECEIPTS):
                return 0
            self._connection.execute(
                "INSERT INTO receipts VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET tokens_layers = excluded.tokens_layers, last = excluded.last",
                (*place, (counted or 0) + added, now),
            )
            self._connection.execute(
                "INSERT INTO servers VALUES (?1, ?2, ?3, ?4, ?5, ?5) ON CONFLICT DO UPDATE SET"
                f" tokens_layers = min(tokens_layers + ?4, {MAX_COUNT}), name = ?2, team = ?3, last = ?5",
                (server, offer.name, offer.team, added, now),
            )
            return added

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


def credit(folder: Path) -> list[ServingCredit]:
    """What every server has computed for others, most first; nobody's if there is no ledger yet.

    :param folder: of whoever began the swarm

    Raises UserError if it cannot be read.
    """
    path = folder / LEDGER_FILE
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)) as connection:
            if _application(connection) != APPLICATION:
                return []
            query = "SELECT peer, name, team, tokens_layers, since, last FROM servers ORDER BY tokens_layers DESC, peer"
            return [ServingCredit(*row) for row in connection.execute(query)]
    except sqlite3.Error as error:
        raise UserError(f"{path}: the ledger cannot be read ({error})") from None


def _application(connection: sqlite3.Connection) -> int:
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    return application


def _is_ours(connection: sqlite3.Connection) -> bool:
    """Or still empty."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    return _application(connection) == APPLICATION or not tables
