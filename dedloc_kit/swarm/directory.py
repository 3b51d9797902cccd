"""Where the peers' signed records lie in the DHT: under one key, or spread over some when there are many peers.

Whoever stores under a key, or asks for it, gets all that lies there; with a thousand peers under one key that would be
most of what the lines carry (design: the cost of stores grows with the square). So a peer that sees many others moves
to a key of its own share of them, named by its peer id.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from hivemind import DHT
from hivemind.utils import get_dht_time

from dedloc_kit.swarm.signing import Signer

MANY = 200
"""Peers from which on they spread."""
SHARES = 16
FULL_LOOK = 60
"""Every so many looks all keys are asked for, however few peers are known: the many may be there already. Each time
costs a request to each of the nearest nodes for each key, so it is rare."""


class Directory:
    """The records of one kind. Nothing in them is checked, but that each is under the key of who signed it.

    :param name: of the kind, with the run
    """

    def __init__(self, dht: DHT, name: str) -> None:
        self._dht, self._name = dht, name
        self._shares = [f"{name}.{share:x}" for share in range(SHARES)]
        self._looks = 0

    def key(self, peer: str, peers: int) -> str:
        """Where the record of a peer belongs when there are so many others."""
        return self._shares[hashlib.sha256(peer.encode()).digest()[0] % SHARES] if peers >= MANY else self._name

    def store(self, signer: Signer, value: object, *, seconds: float, peers: int) -> Any:
        """Put this peer's record there for so long, instead of its last one; a future.

        :param peers: how many others there are
        """
        return self._dht.store(
            self.key(signer.peer, peers),
            subkey=signer.subkey,
            value=value,
            expiration_time=get_dht_time() + seconds,
            return_future=True,
        )

    def look(self, *, peers: int, timeout: float) -> dict[bytes, Any]:
        """Everyone's newest record with its time of expiration, by subkey.

        :param peers: how many others there are, as far as known; some are missed when there are many more
        :param timeout: seconds for each key
        """
        # From half as many on, so that nobody is missed while they do not all know of as many. Who sees nobody is new
        # or was away.
        all_keys = peers == 0 or 2 * peers >= MANY or self._looks % FULL_LOOK == 0
        self._looks += 1
        keys = [self._name, *(self._shares if all_keys else ())]
        futures = [self._dht.get(key, latest=True, return_future=True) for key in keys]
        newest: dict[bytes, Any] = {}
        for future in futures:
            found = future.result(timeout)
            entries: Mapping[bytes, Any] = found.value if found is not None and isinstance(found.value, dict) else {}
            for subkey, entry in entries.items():
                if subkey not in newest or entry.expiration_time > newest[subkey].expiration_time:
                    newest[subkey] = entry
        return newest
