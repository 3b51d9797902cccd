"""Keeps a peer connected to everyone who can be reached, and looks for those who were here but are not seen."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hivemind import DHT

from dedloc_kit.machine.dialling import any_host_responds, in_own_loop
from dedloc_kit.records import Progress
from dedloc_kit.swarm.network.bootstrap import dial
from dedloc_kit.swarm.network.gate import Gate

REDIAL = 30.0
"""Seconds between two looks whether a peer is still connected."""
REDIAL_LOST = 5.0
"""The same for peers that were known, but are not seen or have fallen silent."""
LATER_DIAL = 2.0
"""Seconds that the one of two peers waits which is not to dial first."""
ONLINE_SECONDS = 30.0
"""For so long a line that was up is taken to be up."""
MAX_KNOWN = 32


class Connections:
    """Of one peer, to the others.

    :param me: this peer's id
    :param known: addresses of peers that this one joined through; they are looked for when they are not seen, as are
        those that it has met where they said that they are
    """

    def __init__(self, dht: DHT, me: str, known: Sequence[str], gate: Gate) -> None:
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

    def keep(self, seen: Mapping[str, Progress]) -> None:
        """Dial, in the background, where it is time to.

        :param seen: everyone who is alive
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
        return not self._dht.client_mode and self._me > peer
