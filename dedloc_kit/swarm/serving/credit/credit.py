"""How a server's work comes to its credit: its clients' receipts go to the organizer, again and again."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dedloc_kit.ledger.served import ServingLedger
from dedloc_kit.run.swarm import SwarmConfig
from dedloc_kit.serving.offer import Serving
from dedloc_kit.swarm.network.reach import Hosts
from dedloc_kit.swarm.network.service import NoAnswer, RecordService
from dedloc_kit.swarm.serving.credit.crediting import Accounts, CreditService, claim
from dedloc_kit.swarm.serving.credit.receipts import Receipts
from dedloc_kit.swarm.serving.member import Member

CLAIM_SECONDS, LAST_SECONDS = 30.0, 5.0
"""How often receipts are handed to the organizer, and for how long the last ones."""

_log = logging.getLogger(__name__)


class Credit:
    """One server's part of it; that of whoever began the swarm also counts for all, in a ledger in its folder.

    :param session: ours, as we tell it to everybody
    :param mine: what this server says of itself
    """

    def __init__(
        self, swarm: SwarmConfig, folder: Path, me: Member, session: str, mine: Callable[[], Serving | None]
    ) -> None:
        self.receipts = Receipts(swarm.run_id, me.signer, session)
        self._me, self._mine = me, mine
        self._organizer: CreditService | None = None
        if me.gate.organizer == me.peer:
            self._hosts = Hosts(me.endpoint.p2p)
            accounts = Accounts(me.peer, folder, self._host_of if swarm.access.who == "open" else None)
            self._organizer = CreditService(swarm.run_id, ServingLedger(folder), self._everyone, accounts.apart)
        self._due = 0.0

    @property
    def services(self) -> list[RecordService[Any, Any]]:
        return [self.receipts, *([self._organizer] if self._organizer else [])]

    def refused(self) -> Counter[str]:
        """Receipts and claims, by kind."""
        return self.receipts.rejections.all() + (self._organizer.rejections.all() if self._organizer else Counter())

    def turn(self) -> None:
        """Call it every second or so."""
        if self._organizer is not None:
            self._me.loop.soon(self._organizer.turn)
        if self.receipts.waiting and time.monotonic() >= self._due:
            self._due = time.monotonic() + CLAIM_SECONDS
            self._hand_in()

    def leave(self) -> None:
        """Hand in the last ones; nothing counts here any more."""
        with suppress(TimeoutError):
            self._hand_in().result(LAST_SECONDS)
        if self._organizer is not None:
            self._organizer.close()

    def _hand_in(self) -> "Future[None]":
        return self._me.loop.start(self._handed_in())

    async def _handed_in(self) -> None:
        give = partial(claim, self._me.endpoint, self._me.gate.organizer)
        if self._organizer is not None:
            give = partial(self._organizer.take, self._me.peer)
        try:
            await self.receipts.hand_in(give)
        except (NoAnswer, ValueError) as error:
            _log.info("receipts are not handed in now: %s", error)

    async def _host_of(self, peer: str) -> str:
        """From where a peer comes, all of this machine from one place; empty if that is not known."""
        host = "" if peer == self._me.peer else await self._hosts.of(peer)
        here = {address.split("/")[2] for address in self._me.addresses}
        return "here" if peer == self._me.peer or host in here or host.startswith("127.") else host

    def _everyone(self) -> dict[str, Serving]:
        mine = self._mine()
        return self._me.offers.others() | ({self._me.peer: mine} if mine else {})
