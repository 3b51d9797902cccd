"""What a client and a server sign of the server's work, so that it counts."""

from typing import Annotated

from pydantic import Field

from dedloc_kit.records.record import Count, Digest, PeerId, Record, RunId, Time

MAX_RECEIPT_BYTES = 1536
"""With its signature."""


class Receipt(Record):
    """What a client signs for a server: how much that has computed for it in all, so that only the newest counts and a
    lost one costs nothing."""

    run_id: RunId
    server: PeerId
    server_session: Digest
    """As the server's own record says; it has counted from nothing since this began."""
    session: Digest
    """The client's: another one each time that it starts, and counts from nothing."""
    tokens_layers: Count
    time: Time


class Claim(Record):
    """What the server signs around it, for the organizer."""

    receipt: Annotated[str, Field(max_length=4 * MAX_RECEIPT_BYTES // 3, pattern=r"^[0-9A-Za-z+/]*=*$")]
    """In base64, for no signature may stand within another."""
