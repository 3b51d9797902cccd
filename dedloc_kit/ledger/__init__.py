"""The durable record of a run: who gave what to which global step, and how the run went.

One SQLite file in the coordinator's folder. A killed process loses nothing that was recorded: every change is one
transaction in a write-ahead log, which also lets the dashboard, another process, read while the coordinator writes.

`schema` has the tables and brings those of before up to date, `credit` what counts to whose credit,
`reading` what is read, `ledger` what is written.
"""

from dedloc_kit.ledger.ledger import Ledger
from dedloc_kit.ledger.reading import (
    Contributor,
    Conviction,
    EvaluationPoint,
    Person,
    StartPoint,
    SuiteScore,
    Trouble,
    Visit,
)
from dedloc_kit.ledger.schema import UnreadyLedger

__all__ = [
    "Contributor",
    "Conviction",
    "EvaluationPoint",
    "Ledger",
    "Person",
    "StartPoint",
    "SuiteScore",
    "Trouble",
    "UnreadyLedger",
    "Visit",
]
