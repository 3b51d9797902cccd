"""Keeps a peer connected to everyone who can be reached, and looks for those who were here but are not seen."""

import asyncio
import logging
import math
import random
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hivemind import DHT
from hivemind.dht import DHTNode
from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

from dedloc_kit.machine.dial_policy import Dials
from dedloc_kit.machine.dialling import any_host_responds, first_bytes, host_and_port, in_own_loop
from dedloc_kit.records.experts import HostOffer
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.serving.offer import Serving
from dedloc_kit.swarm.network.gate import Gate
from dedloc_kit.swarm.network.node import Node
from dedloc_kit.swarm.network.reach import seen_host

REDIAL = 30.0
"""Seconds between two looks whether a peer is still connected."""
REDIAL_LOST = 5.0
"""The same for peers that were known, but are not seen or have fallen silent."""
LATER_DIAL = 2.0
"""Seconds that the one of two peers waits which is not to dial first."""
ONLINE_SECONDS = 30.0
"""For so long a line that was up is taken to be up."""
MAX_KNOWN = 32
DIAL_TIMEOUT, GREETING_SECONDS = 10.0, 5.0
GREETING = b"\x13/multistream/1.0.0\n"
"""What libp2p says first to whoever connects."""

_log = logging.getLogger(__name__)


class Connections:
    """Of one peer, to the others.

    :param me: this peer's id
    :param known: addresses of peers that this one joined through; they are looked for when they are not seen, as are
        those that it has met where they said that they are
    """

    def __init__(self, dht: Node, me: str, known: Sequence[str], gate: Gate) -> None:
        self._dht, self._me, self._gate = dht, me, gate
        self._known: dict[str, tuple[str, ...]] = {}
        self._met: dict[str, tuple[str, ...]] = {}
        for address in known:
            peer = address.rpartition("/p2p/")[2]
            self._known[peer] = (*self._known.get(peer, ()), address)
        self._began = time.monotonic()
        self._dialled: dict[str, float] = {}
        self._dialling: list[Any] = []
        self._offline, self._offline_until = False, 0.0

    def keep(self, seen: Mapping[str, Progress | Serving | StageOffer | HostOffer]) -> None:
        """Dial, in the background, where it is time to.

        :param seen: everyone who is alive, by what they say of themselves
        """
        now = time.monotonic()
        wanted = {peer: (progress.addresses, REDIAL) for peer, progress in seen.items() if progress.addresses}
        self._learn(seen)
        lost = self._met | self._known
        wanted |= {peer: (addresses, REDIAL_LOST) for peer, addresses in lost.items() if peer not in wanted}
        due = {}
        for peer, (addresses, period) in wanted.items():
            if peer not in self._dialled and self._answers_to(peer):
                self._dialled[peer] = now - period + LATER_DIAL
            if peer != self._me and now - self._dialled.get(peer, -math.inf) > period:
                # All come due together, for each call into the node's process is dear; but not when the other's do.
                self._dialled[peer] = now - (now - self._began) % period
                if peer in seen:
                    addresses = self._gate.vouched(peer, addresses, seen[peer].reached)
                due[peer] = addresses
        self._dialled = {peer: at for peer, at in self._dialled.items() if peer in wanted}
        if due:
            self._dialling.append(dial(self._dht, due))

    def cut_off(self) -> bool:
        """Is this machine's line down? Then no machine that is known says anything. May take some seconds.

        Who knows nobody's address is alone, not cut off.
        """
        known = [address for addresses in (self._met | self._known).values() for address in addresses]
        if known and time.monotonic() >= self._offline_until:
            self._offline = not in_own_loop(any_host_responds(known))
            self._offline_until = time.monotonic() + (REDIAL_LOST if self._offline else ONLINE_SECONDS)
        return self._offline

    def met(self) -> dict[str, tuple[str, ...]]:
        """Peers that this one was connected to, each with the addresses where it was."""
        return dict(self._met)

    def _learn(self, seen: Collection[str]) -> None:
        """Whom the last dials found where they say that they are. Who only says so is not looked for."""
        for dialled in [dialled for dialled in self._dialling if dialled.done()]:
            self._dialling.remove(dialled)
            with suppress(Exception):  # nobody was found
                self._met |= {peer: addresses for peer, addresses in dialled.result().items() if addresses}
        for peer in sorted(self._met, key=lambda peer: peer in seen)[: max(0, len(self._met) - MAX_KNOWN)]:
            del self._met[peer]

    def _answers_to(self, peer: str) -> bool:
        """Does the other one dial first? Two that dial each other within a round trip both fail."""
        return not self._dht.reach.client_mode and self._me > peer


def dial(node: DHT, peers: Mapping[str, Sequence[str]]) -> Any:
    """Connect to peers, each at the addresses that it names, unless there is a connection already, and put those that
    are missing there back into the directory's routing table; in the background. `Dials` says where it may.

    A future of those that are connected then, with the addresses among these where they are.

    Members of a group talk to each other directly, but they only know the addresses of whom they joined through;
    libp2p's own search among those often answers "routing: not found". And hivemind forgets a peer that once did not
    answer: a client would never find it again after a restart. Failing is no error here: a round will tell.
    """
    return node.run_coroutine(partial(_dial, dict(peers)), return_future=True)


async def _dial(peers: Mapping[str, Sequence[str]], dht: Node, node: DHTNode) -> dict[str, tuple[str, ...]]:
    try:
        connected = {str(info.peer_id): seen_host(info) for info in await node.p2p.list_peers()}
    except Exception as error:  # runs in the node's process: only the log can tell
        _log.info("the connections are not known: %r", error)
        return {}
    due: dict[str, list[str]] = {}
    # Of two that name one port the same one must not always come first.
    for peer in random.sample(list(peers), len(peers)):
        due[peer] = [] if peer in connected else dht.dials.due(peer, peers[peer])
    met = {p: [a for a in peers[p] if connected.get(p) == host_and_port(a)[0]] for p in peers}
    await asyncio.gather(*(_meet(peer, due[peer], connected, dht.dials, node, met[peer]) for peer in peers))
    return {peer: tuple(addresses) for peer, addresses in met.items()}


async def _meet(
    peer_id: str,
    addresses: Sequence[str],
    connected: Collection[str],
    dials: Dials,
    node: DHTNode,
    met: list[str],
) -> None:
    """
    :param addresses: where the peer is dialled, if it is not connected
    :param met: gets those of them where it is
    """
    reached = peer_id in connected
    try:
        peer = PeerID.from_base58(peer_id)
        if addresses and (speaking := await _speaking(addresses)):
            # /p2p/ID at the end is how addresses are told, not how they are dialled.
            dialled = [Multiaddr(address.rpartition("/p2p/")[0]) for address in speaking]
            await asyncio.wait_for(node.p2p._client.connect(peer, dialled), DIAL_TIMEOUT)
            reached = True
            met += speaking
        forgotten = peer not in node.protocol.routing_table or peer in node.blacklist
        if reached and forgotten and await node.protocol.call_ping(peer) is not None:
            node.blacklist.register_success(peer)
    except Exception as error:
        _log.info("no connection to %s: %r", peer_id, error)
    # Where nobody at all is connected, it may be the own line that is down: nobody's failure.
    dials.over(peer_id, addresses, reached=reached or not connected)


async def _speaking(addresses: Sequence[str]) -> list[str]:
    """Those where somebody speaks like libp2p: others are spared its own dials, which it repeats as it likes."""
    said = await asyncio.gather(
        *(first_bytes(*host_and_port(address), len(GREETING), GREETING_SECONDS) for address in addresses)
    )
    return [address for address, greeting in zip(addresses, said, strict=True) if greeting == GREETING]


def avoid(node: DHT, peers: Collection[str]) -> None:
    """Do not ask these peers for anything in the next seconds; in the background.

    The directory finds out by itself who does not answer, but only when it has asked and waited for three seconds.
    """
    node.run_coroutine(partial(_avoid, tuple(peers)), return_future=True)


async def _avoid(peers: tuple[str, ...], _dht: DHT, node: DHTNode) -> None:
    for peer in peers:
        node.blacklist.register_failure(PeerID.from_base58(peer))
