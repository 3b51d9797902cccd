"""An exact copy of a ledger that travels, and the ledger restored from it: one Parquet file for each of its tables.

A copy comes from the Hub or from another coordinator: nothing in it is believed before it was looked at.
"""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dedloc_kit.errors import UserError
from dedloc_kit.ledger.import_worker import fill
from dedloc_kit.ledger.ledger import Ledger
from dedloc_kit.ledger.tables import VERSION_KEY, columns_of, read_query, read_snapshot, table_names, write_parquet

if TYPE_CHECKING:
    import pyarrow as pa

FILL_SECONDS = 3600.0
"""For reading a copy."""


def write_copy(ledger: Path, folder: Path) -> None:
    """Write every table of a ledger, as they stood together at one moment, to a new folder.

    Raises UserError if the ledger cannot be read or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error.strerror})") from None
    with read_snapshot(ledger) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        mark = {VERSION_KEY: str(version).encode()}
        for name in table_names(connection):
            table = read_query(connection, f"SELECT * FROM {name}", columns_of(connection, name))
            write_parquet(_marked(table, mark), folder / f"{name}.parquet")


def restore(ledger: Path, copy: Path, seconds: float = FILL_SECONDS) -> None:
    """Make a ledger what its copy says, whole or not at all; what it held before is gone.

    :param copy: a folder, or an archive of one as the page hands it out
    :param seconds: which reading it may take

    Others may have the ledger open. Raises UserError, and changes nothing, if the copy is none of a ledger of this
    version, is incomplete or holds what no ledger does.
    """
    try:
        with tempfile.TemporaryDirectory(dir=ledger.parent) as place:
            fresh = Path(place) / "ledger.sqlite"
            fill(fresh, copy, seconds)
            Ledger(fresh).close()  # what a coordinator does that starts, it does with this one too
            replace(ledger, fresh)
    except (sqlite3.Error, OSError) as error:
        raise UserError(f"{ledger}: the ledger cannot be written ({error}); free disk space") from None


def replace(ledger: Path, other: Path) -> None:
    """Let a ledger, which others may have open, be the same as another one; raises sqlite3.Error."""
    with closing(sqlite3.connect(other)) as source, closing(sqlite3.connect(ledger, timeout=30)) as target:
        source.backup(target)


def _marked(table: "pa.RecordBatchReader", mark: dict[bytes, bytes]) -> "pa.RecordBatchReader":
    import pyarrow as pa

    schema = table.schema.with_metadata(mark)
    return pa.RecordBatchReader.from_batches(schema, (batch.replace_schema_metadata(mark) for batch in table))
