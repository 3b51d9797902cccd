"""Finding the group of a round without a search: all peers know each other from their progress records.

hivemind's peers declare themselves in the DHT and look there for others in a tight loop (a third of a core while a
group waits), and never ask a peer again that refused once. Ours rank alike whom to follow, and ask these until one
accepts; all the rest, from the join request to the assembled group, is hivemind's matchmaking.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from hivemind.averaging import matchmaking
from hivemind.averaging.control import StepControl
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import get_dht_time

from dedloc_kit.swarm.averaging.group import MOST_ANNOUNCED_BYTES
from dedloc_kit.swarm.network.bounds import MAX_MEMBERS

MATCHMAKING_TIME, REQUEST_TIMEOUT = 4.0, 3.0
"""Seconds; the latter must stay below the former."""
ASK_AGAIN, LONGEST_WAIT = 0.25, 5.0
"""Seconds until a leader that refused is asked again; one that answers slowly is asked less often."""
LONG = 3600.0
"""Seconds, more than any window."""


class Leaders(matchmaking.PotentialLeaders):
    """Asks the same few peers until one of them accepts; they may begin to look for their group later than we."""

    def __init__(self, peer_id: PeerID, candidates: Sequence[str], window: float) -> None:
        super().__init__(peer_id, MATCHMAKING_TIME, None)
        self._due = {PeerID.from_base58(peer): 0.0 for peer in candidates}
        self._window = window
        self._asked: tuple[PeerID, float] | None = None

    @asynccontextmanager
    async def begin_search(
        self, step: StepControl, key_manager: GroupKeyManager, declare: bool = True
    ) -> AsyncIterator["Leaders"]:
        """`declare`: this peer can lead as well, and begins with whoever follows it at the end of its window."""
        self.search_end_time = step.deadline
        if declare:
            self.declared_group_key, self.declared_expiration_time = key_manager.current_key, step.scheduled_time
        self.running.set()
        try:
            yield self
        finally:
            self.running.clear()
            self.declared_group_key, self.declared_expiration_time = None, float("inf")

    async def pop_next_leader(self) -> PeerID:
        """Whom to ask now; raises TimeoutError when it is time to begin with those who follow this peer."""
        if self._asked is not None:
            leader, asked = self._asked
            took = time.monotonic() - asked
            self._due[leader] = time.monotonic() + min(LONGEST_WAIT, max(ASK_AGAIN, 4.0 * took))
            self._asked = None
        while (left := self.declared_expiration_time - get_dht_time()) > 0:
            now = time.monotonic()
            for leader, due in self._due.items():
                if due <= now:
                    self._asked = (leader, now)
                    return leader
            next_due = min(self._due.values(), default=now + LONGEST_WAIT)
            await asyncio.sleep(min(left, next_due - now))
        self.declared_expiration_time = get_dht_time() + self._window  # for the case that nobody has come yet
        raise TimeoutError


class Matchmaking(matchmaking.Matchmaking):
    """hivemind's, with other ways to find leaders and to say who may follow."""

    def prepare(
        self,
        key_bits: str,
        leaders: Sequence[str],
        expected: Collection[str],
        unwelcome: Collection[str],
        window: float,
    ) -> None:
        """Say what the next `look_for_group` looks for.

        :param key_bits: only peers with the same can meet
        :param leaders: whom to ask to lead us, best first
        :param expected: the group stands as soon as they are there
        :param unwelcome: peers that this one would not lead
        :param window: seconds to wait for missing peers before the group stands without them
        """
        self.group_key_manager.group_bits = key_bits
        self.potential_leaders = Leaders(self.peer_id, leaders, window)
        self._expected, self._unwelcome = set(expected), frozenset(unwelcome)
        self.target_group_size = min(max(2, 1 + len(self._expected)), MAX_MEMBERS)

    def get_request_expiration_time(self) -> float:
        """A leader refuses whoever would leave before its own window ends. But windows differ, and whoever has to
        leave can come back: better to be there, for the group may stand the next moment."""
        return float(get_dht_time()) + LONG

    def _check_reasons_to_reject(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> averaging_pb2.MessageFromLeader | None:
        peer = context.remote_id.to_base58()
        if len(request.gather) > MOST_ANNOUNCED_BYTES:
            return averaging_pb2.MessageFromLeader(code=averaging_pb2.PROTOCOL_VIOLATION)
        if self.is_looking_for_group:
            if peer in self._unwelcome:
                return averaging_pb2.MessageFromLeader(code=averaging_pb2.GROUP_IS_FULL)
            if request.group_key == self.group_key_manager.current_key and peer not in self._expected:
                # Somebody that we did not know of has come; it must not take the place of somebody else.
                self._expected.add(peer)
                self.target_group_size = min(1 + len(self._expected), MAX_MEMBERS)
        return super()._check_reasons_to_reject(request, context)

    async def rpc_join_group(
        self, request: averaging_pb2.JoinRequest, context: P2PContext
    ) -> AsyncIterator[averaging_pb2.MessageFromLeader]:
        async for response in super().rpc_join_group(request, context):
            yield response
        # A server that closes a stream may lose what is still on the way (see ExactAllReduce): let the other close it.
        await asyncio.sleep(REQUEST_TIMEOUT)
