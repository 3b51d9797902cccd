"""Whom the ledger knows, for the organizer who names a peer."""

from pathlib import Path

from dedloc_kit.ledger import Ledger, UnreadyLedger


def known_peers(folder: Path) -> dict[str, str]:
    """The names of all contributors of the run in this folder, by peer id. Raises UserError if it cannot be read."""
    path = folder / "ledger.sqlite"
    if not path.exists():
        return {}
    try:
        ledger = Ledger(path, read_only=True)
    except UnreadyLedger:
        return {}
    try:
        return {contributor.peer: contributor.name for contributor in ledger.contributors()}
    finally:
        ledger.close()
