"""What peers ask each other about their chains, and the one way to receive records of a chain."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from dedloc_kit.records.record import Count
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.consensus.chain import KEPT, ChainRecord
from dedloc_kit.swarm.consensus.records import PartName
from dedloc_kit.swarm.consensus.signing import Hash, Link, WireRecord
from dedloc_kit.swarm.p2p.seams import Stream

SERVICE = "chain"
MAX_QUESTION = 8192
PAGE = 256
"""Records in one answer."""
PAGE_BYTES = 8 * 2**20
"""Of an answer, if it has more than one record."""
MAX_OFFER = 2 * KEPT
OFFER_BYTES = 16 * 2**20
ANSWER_SECONDS = 120.0
"""For one stream, with all that comes over it."""


class RecordsAfter(WireRecord):
    """Asks for records after the newest of these links that the other side has.

    :ivar known: links of the asker's branch, newest first
    :ivar term, step: of its head: nothing is answered if the other side is not ahead
    """

    wire: ClassVar[str] = "chain/records-after"

    part: PartName
    known: Annotated[tuple[Hash, ...], Field(min_length=1, max_length=64)]
    term: tuple[Count, Link]
    step: Count


class Records(WireRecord):
    """Precedes so many records.

    :ivar base: the link that they follow; empty if the other side has none of those that were named
    :ivar term, step, head: of the newest record there; the answer may end before it
    """

    wire: ClassVar[str] = "chain/records"

    base: Link
    count: Annotated[int, Field(ge=0, le=PAGE)]
    term: tuple[Count, Link]
    step: Count
    head: Hash


class Offer(WireRecord):
    """Offers records that this peer has left to the coordinator, which answers whether it wants them.

    :ivar head: the link of the last one
    """

    wire: ClassVar[str] = "chain/offer"

    part: PartName
    head: Hash
    count: Annotated[int, Field(ge=1, le=MAX_OFFER)]


class Noted(WireRecord):
    """The coordinator has what a peer has told it. :ivar wants: it lacks the records, and they are to follow now"""

    wire: ClassVar[str] = "chain/noted"

    wants: bool = False


async def send_records(stream: Stream, records: Sequence[ChainRecord]) -> None:
    """One record in each message; only one is held as bytes."""
    for record in records:
        await stream.send(files.encode(record))


async def receive_records(stream: Stream, count: int, limit: int) -> list[ChainRecord]:
    """Receive so many records; whether they are valid is not checked. :param limit: bytes of more than one record"""
    records: list[ChainRecord] = []
    size = 0
    for _ in range(count):
        content = await stream.receive(files.MAX_MESSAGE)
        size += len(content)
        if records and size > limit:
            raise ValueError(f"records of more than {limit} bytes")
        records.append(files.decode(content, *files.RECORDS))
    return records
