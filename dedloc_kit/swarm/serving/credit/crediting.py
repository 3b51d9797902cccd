"""The organizer's side of credit: what servers claim, checked and capped, goes into the ledger."""

import asyncio
import sqlite3
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

from hivemind.utils import get_dht_time
from pydantic import Field

from dedloc_kit.access.guests import ADMITTED_FILE, Admissions, read_admissions
from dedloc_kit.access.minutes import PerMinute
from dedloc_kit.errors import UserError
from dedloc_kit.ledger.served import RECEIPT_SECONDS, ServingLedger
from dedloc_kit.records.record import Record
from dedloc_kit.serving.offer import Serving
from dedloc_kit.serving.receipts import Claim, Receipt
from dedloc_kit.steering.followed import Followed
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.membership.admission import HostOf
from dedloc_kit.swarm.network.identity import MAX_RECORD_BYTES, opened
from dedloc_kit.swarm.network.service import Endpoint, RecordService
from dedloc_kit.swarm.serving.credit.receipts import Taken

CLAIMS_OF_A_SERVER, ALL_CLAIMS = 120, 6000
"""In a minute."""
MAX_AGE, MAX_AHEAD = RECEIPT_SECONDS / 2, 3600.0
"""Of a receipt, in seconds: an older one may have been counted and forgotten. Clocks may differ."""
SAVED_SECONDS = 3600.0
"""For so long a server may claim nothing and lose nothing."""
ANSWER_SECONDS = 10.0


class Claimed(Record):
    """A signed Claim."""

    claim: Annotated[bytes, Field(max_length=MAX_RECORD_BYTES)]


class CreditService(RecordService[Claimed, Taken]):
    """Served by whoever began the swarm; all of it in one loop.

    A server's credit never grows faster than it says that it computes a prompt, over the time for which it was seen.

    :param servers: what each says of itself now, this one included
    :param apart: whether two peers may be taken for two people's
    """

    name = "credit"
    question, reply = Claimed, Taken

    def __init__(
        self,
        run_id: str,
        ledger: ServingLedger,
        servers: Callable[[], Mapping[str, Serving]],
        apart: Callable[[str, str], Awaitable[bool]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rejections = Rejections()
        self._run_id, self._ledger, self._servers, self._apart = run_id, ledger, servers, apart
        self._allowance = PerMinute(CLAIMS_OF_A_SERVER, ALL_CLAIMS)
        self._most: dict[str, float] = {}  # that each may claim now
        self._clock, self._looked = clock, clock()
        self._writing = asyncio.Lock()

    def turn(self) -> None:
        """Let everybody claim what can have been computed since the last turn."""
        now = self._clock()
        passed, self._looked = now - self._looked, now
        speeds = {peer: each.prompts * (each.end - each.begin) for peer, each in self._servers().items()}
        self._most = {
            peer: min(self._most.get(peer, 0.0) + passed * speed, SAVED_SECONDS * speed)
            for peer, speed in speeds.items()
        }

    async def answer(self, peer: str, question: Claimed) -> Taken:
        if not self._allowance.allows(peer):
            raise ValueError("claims come too often")
        await self.take(peer, question.claim)
        return Taken()

    async def take(self, peer: str, signed: bytes) -> None:
        """Count a server's claim, if it is to count.

        Raises ValueError for what is none of this server's, or if it cannot be counted now.
        """
        try:
            author, claim = opened(Claim, signed)
            client, receipt = opened(Receipt, b64decode(claim.receipt))
            if (author, receipt.server, receipt.run_id) != (peer, peer, self._run_id):
                raise ValueError("a claim of somebody else")
        except ValueError:
            self.rejections.add("claim")
            raise
        offer = self._servers().get(peer)
        if offer is None:
            raise ValueError("a server that was not seen yet")
        now = float(get_dht_time())
        if not now - MAX_AGE < receipt.time < now + MAX_AHEAD:
            self.rejections.add("old receipt")
            return
        try:
            if client == peer or not await self._apart(peer, client):
                self.rejections.add("receipt of one's own")
                return
            async with self._writing:
                most = int(self._most.get(peer, 0.0))
                added = await asyncio.to_thread(self._ledger.count, peer, offer, client, receipt, most)
                if peer in self._most:
                    self._most[peer] -= added
        except (UserError, sqlite3.Error) as error:
            raise ValueError(f"not now: {error}") from None

    def close(self) -> None:
        """Claims that still come find no ledger, and come again another time."""
        self._ledger.close()


async def claim(endpoint: Endpoint, organizer: str, signed: bytes) -> None:
    """A server's way there; raises NoAnswer."""
    await endpoint.ask(organizer, CreditService, Claimed(claim=signed), ANSWER_SECONDS)


class Accounts:
    """Which peers may be one person's, as far as the organizer can tell.

    In a swarm that is not open, those that were let in by one name. In an open one those that come from one address:
    it takes all behind one router for one person, and cannot know of somebody who has two addresses.

    :param organizer: its peer, which nobody let in
    :param folder: the organizer's
    :param host_of: from where a peer comes, empty if that is not known; none in a swarm that is not open
    """

    def __init__(self, organizer: str, folder: Path, host_of: HostOf | None) -> None:
        self._organizer, self._host_of = organizer, host_of
        self._admissions: Followed[Admissions] = Followed(folder / ADMITTED_FILE, partial(read_admissions, folder))

    async def apart(self, server: str, client: str) -> bool:
        """May they be taken for two people's? Raises UserError if the organizer's files are damaged."""
        if self._host_of is not None:
            host = await self._host_of(client)
            return not host or host != await self._host_of(server)
        admitted = self._admissions.current().peers
        if client not in admitted:
            return False
        return server == self._organizer or (server in admitted and admitted[server].name != admitted[client].name)
