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

from dedloc_kit.swarm.node import REPLICAS
from dedloc_kit.swarm.signing import Signer

MANY = 200
"""Peers from which on they spread."""
SHARES = 16
FULL_LOOK = 60
"""Every so many looks all keys are asked for, however few peers are known: the many may be there already. Each time
costs a request to each of the nearest nodes for each key, so it is rare."""


def answered_by_one(expires: float) -> dict[str, Any]:
    """For `DHT.get`: ask one node after the other, until one holds a record that stays at least until then."""
    return {"sufficient_expiration_time": expires, "num_workers": 1}


class Directory:
    """The records of one kind. Nothing in them is checked, but that each is under the key of who signed it.

    :param name: of the kind, with the run
    :param seconds: how long a record stays if it is not stored again
    """

    def __init__(self, dht: DHT, name: str, seconds: float) -> None:
        self._dht, self._name, self._seconds = dht, name, seconds
        self._shares = [f"{name}.{share:x}" for share in range(SHARES)]
        self._looks = 0

    def key(self, peer: str, peers: int) -> str:
        """Where the record of a peer belongs when there are so many others."""
        return self._shares[hashlib.sha256(peer.encode()).digest()[0] % SHARES] if peers >= MANY else self._name

    def store(self, signer: Signer, value: object, *, peers: int) -> Any:
        """Put this peer's record there, instead of its last one; a future.

        :param peers: how many others there are
        """
        return self._dht.store(
            self.key(signer.peer, peers),
            subkey=signer.subkey,
            value=value,
            expiration_time=get_dht_time() + self._seconds,
            beam_size=REPLICAS,  # nodes that are asked who is nearest: each answers with all that lies under the key
            return_future=True,
        )

    def look(self, *, peers: int, timeout: float, age: float | None = None) -> dict[bytes, Any]:
        """Everyone's newest record with its time of expiration, by subkey.

        :param peers: how many others there are, as far as known; some are missed when there are many more
        :param timeout: seconds for each key
        :param age: one node, maybe this one, is enough, if somebody has stored a record there in the last so many
            seconds: it is probably one of those at which everybody stores. None: several are asked
        """
        # From half as many on, so that nobody is missed while they do not all know of as many. Who sees nobody is new
        # or was away.
        all_keys = peers == 0 or 2 * peers >= MANY or self._looks % FULL_LOOK == 0
        self._looks += 1
        keys = [self._name, *(self._shares if all_keys else ())]
        enough = {"latest": True} if age is None else answered_by_one(get_dht_time() + self._seconds - age)
        futures = [self._dht.get(key, return_future=True, **enough) for key in keys]
        newest: dict[bytes, Any] = {}
        for future in futures:
            found = future.result(timeout)
            entries: Mapping[bytes, Any] = found.value if found is not None and isinstance(found.value, dict) else {}
            for subkey, entry in entries.items():
                if subkey not in newest or entry.expiration_time > newest[subkey].expiration_time:
                    newest[subkey] = entry
        return newest
