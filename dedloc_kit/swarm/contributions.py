"""Signed contributions in the DHT: the latest one of every peer, so that anyone can keep a ledger of the run."""

from collections.abc import Callable

from hivemind import DHT
from hivemind.utils import get_dht_time

from dedloc_kit.records import Contribution
from dedloc_kit.swarm.signing import Signer, author

TIME_TO_LIVE = 3600.0
DHT_TIMEOUT = 20.0


def publish(dht: DHT, signer: Signer, contribution: Contribution) -> None:
    """Store this peer's latest contribution, in the background; it replaces the one before.

    Its cumulative counter says what the session gave in all, so a collector that misses one loses nothing.
    """
    dht.store(
        _key(contribution.run_id),
        subkey=signer.subkey,
        value=contribution.model_dump(),
        expiration_time=get_dht_time() + TIME_TO_LIVE,
        return_future=True,
    )


def collect(dht: DHT, run_id: str, reject: Callable[[str], None]) -> dict[str, Contribution]:
    """The latest contribution of every peer, by peer id; invalid ones are reported and left out."""
    found = dht.get(_key(run_id), latest=True, return_future=True).result(DHT_TIMEOUT)
    contributions = {}
    for subkey, entry in found.value.items() if found is not None and isinstance(found.value, dict) else ():
        try:
            contribution = Contribution.parse(entry.value)
            if contribution.run_id != run_id:
                raise ValueError("Contribution: of another run")
            contributions[author(subkey)] = contribution
        except (ValueError, TypeError) as error:
            reject(f"a contribution was ignored: {error}")
    return contributions


def _key(run_id: str) -> str:
    return f"{run_id}_contributions"
