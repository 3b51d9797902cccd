"""Where the peers' signed records lie in the DHT: under one key, or spread over some when there are many peers.

Whoever stores under a key, or asks for it, gets all that lies there; with a thousand peers under one key that would be
most of what the lines carry (design: the cost of stores grows with the square). So a peer that sees many others moves
to a key of its own share of them, named by its peer id.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic

from hivemind import DHT
from hivemind.utils import get_dht_time

from dedloc_kit.swarm.network.bootstrap import REPLICAS
from dedloc_kit.swarm.network.identity import Signer, author
from dedloc_kit.swarm.network.kinds import Kind, R, share_of
from dedloc_kit.swarm.network.names import Names

MANY = 200
"""Peers from which on they spread."""
FULL_LOOK = 60
"""Every so many looks all keys are asked for, however few peers are known: the many may be there already. Each time
costs a request to each of the nearest nodes for each key, so it is rare."""


class Directory(Generic[R]):
    """The records of one kind.

    :param reject: told why a record is ignored, once for each
    :param check: raises ValueError for a record that is valid and not to be believed
    :param seconds: how long a record stays if it is not stored again; as long as its kind may if none
    """

    def __init__(
        self,
        dht: DHT,
        kind: Kind[R],
        run_id: str,
        *,
        reject: Callable[[str], None],
        check: Callable[[R], object] = lambda _: None,
        seconds: float | None = None,
    ) -> None:
        self._dht, self._run_id, self._reject = dht, run_id, reject
        self._kind: Kind[R] = kind
        self._key, self._shares = kind.key(Names(run_id)), kind.shares(Names(run_id))
        self._check: Callable[[R], object] = check
        self._seconds = kind.seconds if seconds is None else seconds
        self._looks = 0
        self._ignored: set[tuple[bytes, float]] = set()  # records that the last look ignored

    def key(self, peer: str, peers: int) -> str:
        """Where the record of a peer belongs when there are so many others."""
        return self._shares[share_of(peer)] if self._shares and peers >= MANY else self._key

    def store(self, signer: Signer, record: R | None, *, peers: int) -> Any:
        """Put this peer's record there, instead of its last one; a future.

        :param record: none if this peer leaves
        :param peers: how many others there are
        """
        return self._dht.store(
            self.key(signer.peer, peers),
            subkey=signer.subkey,
            value=None if record is None else record.model_dump(),
            expiration_time=get_dht_time() + self._seconds,
            beam_size=REPLICAS,  # nodes that are asked who is nearest: each answers with all that lies there
            return_future=True,
        )

    def look(self, *, peers: int, timeout: float, age: float | None = None) -> dict[str, R | None]:
        """Everyone's newest record by peer id; none of those who have left.

        :param peers: how many others there are, as far as known; some are missed when there are many more
        :param timeout: seconds for each key
        :param age: one node, maybe this one, is enough, if somebody has stored a record there in the last so many
            seconds: it is probably one of those at which everybody stores. None: several are asked
        """
        records: dict[str, R | None] = {}
        ignored = set()
        for subkey, entry in self._newest(self._keys(peers), timeout, age).items():
            try:
                record = self._kind.read(self._run_id, entry.value)
                if record is not None:
                    self._check(record)
                records[author(subkey)] = record
            except (ValueError, TypeError) as error:
                ignored.add((subkey, entry.expiration_time))
                if (subkey, entry.expiration_time) not in self._ignored:
                    self._reject(str(error))
        self._ignored = ignored
        return records

    def _keys(self, peers: int) -> list[str]:
        """Those under which records may lie."""
        # From half as many on, so that nobody is missed while they do not all know of as many. Who sees nobody is new
        # or was away.
        all_keys: bool = peers == 0 or 2 * peers >= MANY or self._looks % FULL_LOOK == 0
        self._looks += 1
        return [self._key, *(self._shares if all_keys else ())]

    def _newest(self, keys: Sequence[str], timeout: float, age: float | None) -> dict[bytes, Any]:
        """Plain values with their time of expiration, by subkey."""
        # One node after the other, until one holds a record that stays at least until then.
        one = {"sufficient_expiration_time": get_dht_time() + self._seconds - (age or 0.0), "num_workers": 1}
        enough: dict[str, Any] = {"latest": True} if age is None else one
        futures = [self._dht.get(key, return_future=True, **enough) for key in keys]
        newest: dict[bytes, Any] = {}
        for future in futures:
            found = future.result(timeout)
            entries: Mapping[bytes, Any] = found.value if found is not None and isinstance(found.value, dict) else {}
            for subkey, entry in entries.items():
                if subkey not in newest or entry.expiration_time > newest[subkey].expiration_time:
                    newest[subkey] = entry
        return newest
