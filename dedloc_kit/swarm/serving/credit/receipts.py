"""A server's receipts: what its clients sign of its work, checked against its own count, until the organizer has it."""

from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import Field

from dedloc_kit.access.minutes import PerMinute
from dedloc_kit.records.record import Record
from dedloc_kit.serving.receipts import MAX_RECEIPT_BYTES, Claim, Receipt
from dedloc_kit.swarm.incidents import Rejections
from dedloc_kit.swarm.network.identity import Signer, opened
from dedloc_kit.swarm.network.service import RecordService

RECEIPTS_OF_A_CLIENT, ALL_RECEIPTS = 30, 6000
"""In a minute."""
MAX_CLIENTS, MAX_SESSIONS = 1024, 16
"""That are remembered, and sessions of each."""
MAX_WAITING = 256
"""Receipts for an organizer who is away."""
AT_ONCE = 32


class Given(Record):
    """A signed Receipt."""

    receipt: Annotated[bytes, Field(max_length=MAX_RECEIPT_BYTES)]


class Taken(Record):
    """It need not be sent again."""


class _Client:
    """
    :ivar computed: for it, by our own count
    :ivar signed: by it, in all
    :ivar newest: what the newest receipt of each of its sessions says
    """

    def __init__(self) -> None:
        self.computed = self.signed = 0
        self.newest: dict[str, int] = {}


class Receipts(RecordService[Given, Taken]):
    """Takes them; all of it in one loop.

    :param session: ours, as we tell it to everybody
    """

    name = "receipt"
    question, reply = Given, Taken

    def __init__(self, run_id: str, signer: Signer, session: str) -> None:
        self.rejections = Rejections()
        self._run_id, self._signer, self._session = run_id, signer, session
        self._clients: dict[str, _Client] = {}  # the one for whom something was computed last is the last
        self._waiting: dict[tuple[str, str], bytes] = {}  # by client and its session
        self._allowance = PerMinute(RECEIPTS_OF_A_CLIENT, ALL_RECEIPTS)

    @property
    def waiting(self) -> int:
        """How many the organizer does not have yet."""
        return len(self._waiting)

    def computed(self, client: str, tokens_layers: int) -> None:
        """So much more was computed for a client."""
        known = self._clients.pop(client, None) or _Client()
        known.computed += tokens_layers
        self._clients[client] = known
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]

    async def answer(self, peer: str, question: Given) -> Taken:
        try:
            self._take(peer, question.receipt)
        except ValueError:
            self.rejections.add("receipt")
            raise
        return Taken()

    def _take(self, peer: str, signed: bytes) -> None:
        if not self._allowance.allows(peer):
            raise ValueError("receipts come too often")
        author, receipt = opened(Receipt, signed)
        meant = receipt.run_id, receipt.server, receipt.server_session
        if author != peer or meant != (self._run_id, self._signer.peer, self._session):
            raise ValueError("a receipt of somebody else, or for somebody else")
        client = self._clients.get(peer, _Client())
        more = receipt.tokens_layers - client.newest.get(receipt.session, 0)
        if more <= 0:
            return  # an older one
        if client.signed + more > client.computed:
            raise ValueError("a receipt for more than was computed")
        client.signed += more
        client.newest[receipt.session] = receipt.tokens_layers
        if len(client.newest) > MAX_SESSIONS:
            del client.newest[next(iter(client.newest))]
        self._waiting[peer, receipt.session] = signed
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    async def hand_in(self, give: Callable[[bytes], Awaitable[object]]) -> None:
        """Give what is new to the organizer, as signed claims; what `give` raises is raised, and the rest stays."""
        for place, receipt in list(self._waiting.items())[:AT_ONCE]:
            await give(self._signer.sign(Claim(receipt=b64encode(receipt).decode())))
            if self._waiting.get(place) is receipt:
                del self._waiting[place]
