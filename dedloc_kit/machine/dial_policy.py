"""Which addresses that strangers name this machine dials, and how often: nobody makes it one of a crowd, nor a scanner
of the network where it is."""

import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from dedloc_kit.machine.addresses import is_public
from dedloc_kit.machine.dialling import host_and_port, number_of

PERIOD = 60.0
"""Seconds between two dials of a host and port, whoever names it."""
PORTS_OF_A_HOST, IN_ALL = 64, 256
"""Dialled in so many seconds; a class of volunteers may share an address."""
MAX_FAILURES, FORGOTTEN_SECONDS = 3, 3600.0
"""After so many in a row a peer is not looked for at an address for so long."""
_REMEMBERED = 4096
_NOT_THE_WORLD = tuple(
    map(
        ipaddress.IPv4Network,
        ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"),
    )
)

Place = tuple[str, int]


class Dials:
    """The dials of one process.

    Addresses must be numbers, in the world's network or in one in which this run is anyway: a name may be looked up to
    be whatever its owner likes.

    :param chosen: addresses that the user of this machine has chosen, which may always be dialled
    :param near: hosts of this run that nobody else has named; private networks count only if one of these is there
    :param clock: seconds
    """

    def __init__(
        self, chosen: Collection[str], near: Collection[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.chosen, self._clock = frozenset(chosen), clock
        self._networks = frozenset(filter(None, map(_network_near, near)))
        self._dialled: dict[Place, float] = {}
        self._failures: OrderedDict[tuple[str, Place], tuple[int, float]] = OrderedDict()

    def due(self, peer: str, addresses: Sequence[str]) -> list[str]:
        """Those of a peer's addresses that may be dialled now; they count as dialled."""
        return [address for address in addresses if address.endswith(f"/p2p/{peer}") and self._take(peer, address)]

    def over(self, peer: str, addresses: Sequence[str], *, reached: bool) -> None:
        """Whether a dial of these addresses led to the peer."""
        for known in [(peer, host_and_port(address)) for address in addresses]:
            failures, _ = self._failures.pop(known, (0, 0.0))
            if not reached:
                self._failures[known] = (failures + 1, self._clock())
        while len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)

    def _take(self, peer: str, address: str) -> bool:
        if address in self.chosen:
            return True
        try:
            host, port = place = host_and_port(address)
            network = _network_of(host)
        except ValueError:
            return False
        now = self._clock()
        self._dialled = {dialled: at for dialled, at in self._dialled.items() if now < at + PERIOD}
        failures, failed = self._failures.get((peer, place), (0, 0.0))
        if (
            (network is not None and network not in self._networks)
            or not 0 < port < 2**16
            or place in self._dialled
            or len(self._dialled) >= IN_ALL
            or Counter(host for host, _ in self._dialled)[host] >= PORTS_OF_A_HOST
            or (failures >= MAX_FAILURES and now < failed + FORGOTTEN_SECONDS)
        ):
            return False
        self._dialled[place] = now
        return True


def _network_near(host: str) -> ipaddress.IPv4Network | None:
    with suppress(ValueError):
        return _network_of(number_of(host) or host)
    return None


def _network_of(host: str) -> ipaddress.IPv4Network | None:
    """Which network that is not the world's an address belongs to; raises ValueError for what is no host's address."""
    address = ipaddress.IPv4Address(host)
    for network in _NOT_THE_WORLD:
        if address in network:
            return network
    if not is_public(host):
        raise ValueError(f"{host} is nobody's address")
    return None
