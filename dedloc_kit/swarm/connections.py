"""Keeps a peer connected to everyone who can be reached, and looks for those who were here but are not seen."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dedloc_kit.machine.dialling import any_host_responds, in_own_loop
from dedloc_kit.swarm.dht import Node
from dedloc_kit.swarm.node import dial

REDIAL = 30.0
"""Seconds between two looks whether a peer is still connected."""
REDIAL_LOST = 5.0
"""The same for peers that were known, but are not seen or have fallen silent."""
LATER_DIAL = 2.0
"""Seconds that the one of two peers waits which is not to dial first."""
ONLINE_SECONDS = 30.0
"""For so long a line that was up is taken to be up."""
MOST_KNOWN, MOST_ADDRESSES = 32, 8


class Connections:
    """Of one peer, to the others.

    :param me: this peer's id
    :param known: addresses of peers that this one joined through; they are looked for when they are not seen, as are
        those that it has met where they said that they are
    """

    def __init__(self, dht: Node, me: str, known: Sequence[str]) -> None:
        self._dht, self._me = dht, me
        self._known: dict[str, tuple[str, ...]] = {}
        for address in known:
            peer = address.rpartition("/p2p/")[2]
            self._known[peer] = (*self._known.get(peer, ()), address)
        self._began = time.monotonic()
        self._dialled: dict[str, float] = {}
        self._dialling: Any = None
        self._offline, self._offline_until = False, 0.0

    def keep(self, seen: Mapping[str, tuple[str, ...]]) -> None:
        """Dial, in the background, where it is time to.

        :param seen: everyone who is alive, with the addresses that it names
        """
        now = time.monotonic()
        wanted = {peer: (addresses, REDIAL) for peer, addresses in seen.items() if addresses}
        self._learn()
        wanted |= {peer: (addresses, REDIAL_LOST) for peer, addresses in self._known.items() if peer not in wanted}
        due = {}
        for peer, (addresses, period) in wanted.items():
            if peer not in self._dialled and self._answers_to(peer):
                self._dialled[peer] = now - period + LATER_DIAL
            if peer != self._me and now - self._dialled.get(peer, -math.inf) > period:
                # All come due together, for each call into the node's process is dear; but not when the other's do.
                self._dialled[peer] = now - (now - self._began) % period
                due[peer] = addresses
        if due:
            self._dialling = dial(self._dht, due)

    def cut_off(self) -> bool:
        """Is this machine's line down? Then no machine that is known says anything. May take some seconds.

        Who knows nobody's address is alone, not cut off.
        """
        known = [address for addresses in self._known.values() for address in addresses]
        if known and time.monotonic() >= self._offline_until:
            self._offline = not in_own_loop(any_host_responds(known))
            self._offline_until = time.monotonic() + (REDIAL_LOST if self._offline else ONLINE_SECONDS)
        return self._offline

    def _learn(self) -> None:
        """Whom the last dial found where they say that they are. Who only says so is not looked for."""
        if self._dialling is None or not self._dialling.done():
            return
        with suppress(Exception):  # nobody was found
            for peer, addresses in self._dialling.result().items():
                if addresses and (peer in self._known or len(self._known) < MOST_KNOWN):
                    self._known[peer] = tuple(dict.fromkeys((*self._known.get(peer, ()), *addresses)))[:MOST_ADDRESSES]
        self._dialling = None

    def _answers_to(self, peer: str) -> bool:
        """Does the other one dial first? Two that dial each other within a round trip both fail."""
        return not self._dht.client_mode and self._me > peer
