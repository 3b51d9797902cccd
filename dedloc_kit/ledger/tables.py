"""The ledger as tables for other programs: CSV for spreadsheets, Parquet for everything else.

A table is read in one transaction, as it stood at one moment, and in batches: a long run's millions of contributions
take no more memory than some thousands. pyarrow is imported when the first table is written.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args
from urllib.parse import quote

from dedloc_kit.errors import UserError
from dedloc_kit.ledger.ledger import Ledger
from dedloc_kit.ledger.reading import Person

if TYPE_CHECKING:
    import pyarrow as pa

TableName = Literal["contributions", "steps", "evaluations", "suites", "people", "lenders", "hosts", "convictions"]
TableFormat = Literal["csv", "parquet"]
TABLES: tuple[TableName, ...] = get_args(TableName)

BATCH_ROWS = 20_000
VERSION_KEY = b"dedloc_ledger"
"""In each file of a ledger's copy: the version of its tables."""
_FORMULA = r"^[=+\-@＝＋－＠\t\r]"
"""How a cell begins that a spreadsheet would compute; the wide forms too, which some take for the same."""


def write_table(ledger: Path, name: TableName, kind: TableFormat, path: Path) -> None:
    """Write one table of a ledger to a file, which is replaced.

    `contributions` has a row for what each peer gave to each global step, `steps` and `evaluations` one for each of
    theirs, `suites` one for each score by a standard suite, `people` one for everyone who gave samples, `lenders` and
    `hosts` one for everyone who lent a line or hosted experts, `convictions` one for each time that somebody was found
    to cheat. Names come from strangers: in CSV a cell that a spreadsheet would take for a formula begins with an
    apostrophe.

    Raises UserError if the ledger cannot be read or the file cannot be written.
    """
    with read_snapshot(ledger) as connection:
        if name == "people":
            table = _people(ledger)
        elif name == "contributions":
            theirs = [column for column in columns_of(connection, "contributions") if column.name != "part"]
            whose = [column for column in columns_of(connection, "parts") if column.name in ("peer", "session", "name")]
            chosen = ", ".join([*(f"c.{column.name}" for column in theirs), *(f"p.{column.name}" for column in whose)])
            query = f"SELECT {chosen} FROM contributions c JOIN parts p ON p.id = c.part ORDER BY c.step, c.part"
            table = read_query(connection, query, [*theirs, *whose])
        else:
            order = {
                "suites": "metric, model, step",
                "convictions": "time, peer",
                "lenders": "peer",
                "hosts": "peer",
            }.get(name, "step")
            table = read_query(connection, f"SELECT * FROM {name} ORDER BY {order}", columns_of(connection, name))
        (_write_csv if kind == "csv" else write_parquet)(table, path)


class Column:
    """A column of a table in SQLite, with the Arrow type that its declared type stands for."""

    def __init__(self, name: str, declared: str, required: bool) -> None:
        import pyarrow as pa

        self.name, self.required = name, required
        self.type = {"INTEGER": pa.int64(), "REAL": pa.float64(), "TEXT": pa.string(), "BLOB": pa.binary()}[declared]


def table_names(connection: sqlite3.Connection) -> list[str]:
    """The ledger's own tables."""
    rows = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted(name for (name,) in rows)


def columns_of(connection: sqlite3.Connection, table: str) -> list[Column]:
    """As the table was declared."""
    rows = connection.execute('SELECT name, type, "notnull" OR pk FROM pragma_table_info(?)', (table,))
    return [Column(name, declared, bool(required)) for name, declared, required in rows]


def read_query(connection: sqlite3.Connection, query: str, columns: list[Column]) -> "pa.RecordBatchReader":
    """What a query gives, as batches of these columns; read as it is written on."""
    import pyarrow as pa

    schema = pa.schema([pa.field(column.name, column.type, nullable=not column.required) for column in columns])
    cursor = connection.execute(query)

    def batches() -> Iterator[pa.RecordBatch]:
        while rows := cursor.fetchmany(BATCH_ROWS):
            values = zip(*rows, strict=True)
            yield pa.record_batch([pa.array(v, c.type) for v, c in zip(values, columns, strict=True)], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def write_parquet(table: "pa.RecordBatchReader", path: Path) -> None:
    """Write batches as they come, each a row group."""
    from pyarrow import parquet

    with _writing(path), parquet.ParquetWriter(path, table.schema, compression="zstd") as writer:
        for batch in table:
            writer.write_batch(batch)


@contextmanager
def read_snapshot(ledger: Path) -> Iterator[sqlite3.Connection]:
    """A connection that sees the ledger as it is at one moment, while others write on.

    Raises UserError if the ledger cannot be read.
    """
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(ledger.absolute()))}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UserError(f"{ledger}: the ledger cannot be read ({error}); has the run begun?") from None


def _people(ledger: Path) -> "pa.RecordBatchReader":
    import pyarrow as pa

    opened = Ledger(ledger, read_only=True)
    try:
        people = opened.people()
    finally:
        opened.close()
    kinds: dict[Any, Any] = {int: pa.int64(), float: pa.float64()}
    schema = pa.schema([(field.name, kinds.get(field.type, pa.string())) for field in fields(Person)])
    rows = [[v if isinstance(v, int | float | str | None) else json.dumps(v) for v in astuple(p)] for p in people]
    values = zip(*rows, strict=True) if rows else [[] for _ in schema]
    arrays = [pa.array(v, field.type) for v, field in zip(values, schema, strict=True)]
    return pa.RecordBatchReader.from_batches(schema, [pa.record_batch(arrays, schema=schema)])


def _write_csv(table: "pa.RecordBatchReader", path: Path) -> None:
    import pyarrow as pa
    from pyarrow import compute, csv

    with _writing(path), csv.CSVWriter(path, table.schema) as writer:
        for batch in table:
            columns = [
                compute.replace_substring_regex(column, _FORMULA, r"'\0") if column.type == pa.string() else column
                for column in batch.columns
            ]
            writer.write_batch(pa.record_batch(columns, schema=table.schema))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); is the disk full?") from None
