"""Signed contributions in the DHT: the latest one of every peer, so that anyone can keep a ledger of the run."""

from collections.abc import Callable

from hivemind import DHT

from dedloc_kit.config.run import MAX_BATCHES
from dedloc_kit.records.steps import Contribution
from dedloc_kit.swarm.directory.directory import MANY, Directory
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.kinds import CONTRIBUTIONS

DHT_TIMEOUT = 20.0


def publish(dht: DHT, signer: Signer, contribution: Contribution, *, peers: int = 0) -> None:
    """Store this peer's latest contribution, in the background; it replaces the one before.

    Its cumulative counter says what the session gave in all, so a collector that misses one loses nothing. What was
    pledged with it to a round is of no use here.

    :param peers: how many others there are
    """
    directory = Directory(dht, CONTRIBUTIONS, contribution.run_id, reject=lambda _: None)
    plain = Contribution(**{name: getattr(contribution, name) for name in Contribution.model_fields})
    directory.store(signer, plain, peers=peers)


def collect(dht: DHT, run_id: str, global_batch: int, reject: Callable[[str], None]) -> dict[str, Contribution]:
    """The latest contribution of every peer, by peer id; invalid ones are reported and left out."""
    directory = Directory(
        dht,
        CONTRIBUTIONS,
        run_id,
        reject=lambda why: reject(f"a contribution was ignored: {why}"),
        check=lambda contribution: possible(contribution, run_id, global_batch),
    )
    found = directory.look(peers=MANY, timeout=DHT_TIMEOUT)
    return {peer: contribution for peer, contribution in found.items() if contribution is not None}


def possible(contribution: Contribution, run_id: str, global_batch: int) -> Contribution:
    """The contribution; raises ValueError if no honest peer of this run can have given it.

    A signature proves who says so, not that it is true: this is asked wherever a contribution is taken.
    """
    most = MAX_BATCHES * global_batch
    if contribution.run_id != run_id:
        raise ValueError("Contribution: of another run")
    if contribution.step < 1:
        raise ValueError("Contribution: there is no step 0 to give to")
    if contribution.samples > most:
        raise ValueError(f"Contribution: claims {contribution.samples} samples for a batch of {global_batch}")
    if not contribution.samples <= contribution.session_samples <= contribution.step * most:
        raise ValueError(f"Contribution: its session cannot have given {contribution.session_samples} samples")
    return contribution
