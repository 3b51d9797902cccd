"""What servers have computed for a client, and how it signs that for each of them."""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable

from hivemind.utils import get_dht_time

from dedloc_kit.serving.receipts import Receipt
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import NoAnswer, answered, encode
from dedloc_kit.swarm.remote.lines import Opener
from dedloc_kit.swarm.serving.credit.receipts import Given, Receipts, Taken

TELL_SECONDS = 10.0
ANSWER_SECONDS = 10.0
MAX_SERVERS = 1024
"""That are remembered, in one session each; of the others' work only the last receipt tells."""

_log = logging.getLogger(__name__)


class Tally:
    """Of one client, for as long as it runs.

    :param session_of: a server's session as it says itself; empty if it is not known
    """

    def __init__(self, run_id: str, signer: Signer, session_of: Callable[[str], str]) -> None:
        self._run_id, self._signer, self._session_of = run_id, signer, session_of
        self._session = secrets.token_hex(8)
        self._computed: Counter[tuple[str, str]] = Counter()  # by server and its session
        self._told: Counter[tuple[str, str]] = Counter()

    def add(self, server: str, tokens_layers: int) -> None:
        """A server has computed so much."""
        place = server, self._session_of(server)
        if place not in self._computed and len(self._computed) >= MAX_SERVERS:
            oldest = next(iter(self._computed))
            del self._computed[oldest], self._told[oldest]
        self._computed[place] += tokens_layers

    async def tell(self, opener: Opener) -> None:
        """Sign for each server what it does not know yet; for who does not answer, the next time."""
        news = [place for place, computed in self._computed.items() if place[1] and computed > self._told[place]]
        await asyncio.gather(*(self._tell(opener, *place) for place in news))

    async def keep_telling(self, opener: Opener) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            await self.tell(opener)

    async def _tell(self, opener: Opener, server: str, server_session: str) -> None:
        computed = self._computed[server, server_session]
        receipt = Receipt(
            run_id=self._run_id,
            server=server,
            server_session=server_session,
            session=self._session,
            tokens_layers=computed,
            time=float(get_dht_time()),
        )
        given = encode(Given(receipt=self._signer.sign(receipt)))
        try:
            with answered(server):
                async with asyncio.timeout(ANSWER_SECONDS), opener.open(server, Receipts, given) as stream:
                    await stream.receive_record(Taken)
        except NoAnswer as error:
            _log.info("a receipt is not taken: %s", error)
        else:
            self._told[server, server_session] = computed
