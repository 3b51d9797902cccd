"""Signed contributions in the DHT: the latest one of every peer, so that anyone can keep a ledger of the run."""

from collections.abc import Callable

from hivemind import DHT

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.directory import MANY, Directory
from dedloc_kit.swarm.receipts import possible
from dedloc_kit.swarm.signing import Signer, author

TIME_TO_LIVE = 3600.0
DHT_TIMEOUT = 20.0


def publish(dht: DHT, signer: Signer, contribution: Contribution, *, peers: int = 0) -> None:
    """Store this peer's latest contribution, in the background; it replaces the one before.

    Its cumulative counter says what the session gave in all, so a collector that misses one loses nothing.

    :param peers: how many others there are
    """
    _directory(dht, contribution.run_id).store(signer, contribution.model_dump(), peers=peers)


def collect(dht: DHT, run_id: str, global_batch: int, reject: Callable[[str], None]) -> dict[str, Contribution]:
    """The latest contribution of every peer, by peer id; invalid ones are reported and left out."""
    contributions = {}
    for subkey, entry in _directory(dht, run_id).look(peers=MANY, timeout=DHT_TIMEOUT).items():
        try:
            contributions[author(subkey)] = possible(Contribution.parse(entry.value), run_id, global_batch)
        except (ValueError, TypeError) as error:
            reject(f"a contribution was ignored: {error}")
    return contributions


def _directory(dht: DHT, run_id: str) -> Directory:
    return Directory(dht, f"{run_id}_contributions", TIME_TO_LIVE)
