"""A budget that many addresses share, so that one of them can never use it up for the others."""

import ipaddress
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from dedloc_kit.machine.addresses import parse

Holder = TypeVar("Holder", bound=Hashable)


class Shares(Generic[Holder]):
    """Who holds a part of a budget, by address.

    One address alone may hold everything. Once nothing is left, each newcomer is given the place of whoever came first
    of the address that holds most: so the addresses end up with equal shares, and a flood from one of them costs only
    its own earlier ones.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: dict[str, dict[Holder, None]] = {}
        self._addresses: dict[Holder, str] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def __iter__(self) -> Iterator[Holder]:
        return iter(tuple(self._addresses))

    def has_room(self, address: str) -> bool:
        """Whether one more of this address need not take the place of another one of its own."""
        if len(self) < self.most:
            return True
        return len(self._held.get(address, ())) + 1 < max(map(len, self._held.values()))

    def add(self, address: str, holder: Holder) -> Holder | None:
        """Take one in; returns who has to go for it, and holds nothing any more."""
        self._held.setdefault(address, {})[holder] = None
        self._addresses[holder] = address
        if len(self) <= self.most:
            return None
        fullest = max(self._held, key=lambda known: len(self._held[known]))
        first = next(iter(self._held[fullest]))
        self.discard(first)
        return first

    def discard(self, holder: Holder) -> None:
        """Give back what this one holds, if it holds anything."""
        address = self._addresses.pop(holder, None)
        if address is not None:
            del self._held[address][holder]
            if not self._held[address]:
                del self._held[address]


def household(host: str) -> str:
    """Whose share a host counts for: of IPv6 the network that one household has; empty for what is no address."""
    try:
        address = parse(host)
    except ValueError:  # a proxy may name anything
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
