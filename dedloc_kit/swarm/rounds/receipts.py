"""What a finished global step was made of, as its members signed it."""

from collections.abc import Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.records import Contribution, Decay, GlobalStep, Receipt, Rewind
from dedloc_kit.swarm.directory.contributions import possible
from dedloc_kit.swarm.network.signing import Signer


def opened(
    signer: Signer, run_id: str, step: int, signed: tuple[bytes, ...], global_batch: int
) -> dict[str, Contribution]:
    """Contributions to a step by peer; raises ValueError if one is not what it should be."""
    contributions = dict(signer.open(Contribution, contribution) for contribution in signed)
    for contribution in contributions.values():
        if possible(contribution, run_id, global_batch).step != step:
            raise ValueError("a contribution is of another step")
    return contributions


def rewind_in(signer: Signer, run_id: str, receipt: Receipt, organizer: str) -> Rewind | None:
    """The order that stands in the receipt of a step, if one does; raises ValueError unless it is the organizer's for
    this very step."""
    if not receipt.rewind:
        return None
    author, rewind = signer.open(Rewind, receipt.rewind)
    if author != organizer:
        raise ValueError("it holds a rewind that the organizer did not order")
    if (rewind.run_id, rewind.step, rewind.round) != (run_id, receipt.step, receipt.round) or receipt.signed:
        raise ValueError("it holds a rewind of another step")
    return rewind


def decay_in(contributions: Mapping[str, Contribution], organizer: str) -> int:
    """The decay that is ordered with a step, as in Contribution; 0 if none is. Whatever others than the organizer write
    there orders nothing."""
    return contributions[organizer].decay if organizer in contributions else 0


def falling(decay: Decay) -> str:
    """A decay in words."""
    return (
        f"the organizer lets the learning rate fall from global step {decay.start} on, over {decay.steps}; the run "
        f"ends with step {decay.end}"
    )


def told(rewind: Rewind) -> str:
    """A rewind in words."""
    rate = "" if rewind.rate == 1 else f", with {rewind.rate:.4g} times its learning rate"
    return f"the organizer lets global step {rewind.step} take over the state of step {rewind.checkpoint}{rate}"


def global_step(
    receipt: Receipt, contributions: dict[str, Contribution], parts: Mapping[str, float] | None = None
) -> GlobalStep:
    """The step as everyone's ledger has it; its loss is the mean over the samples.

    :param parts: seconds of its parts, as in GlobalStep, as far as this peer took part in them
    """
    losses = [(c.loss, c.samples) for c in contributions.values() if c.loss is not None and c.samples]
    return GlobalStep(
        step=receipt.step,
        round=receipt.round,
        time=min(receipt.time, get_dht_time()),
        samples=sum(c.samples for c in contributions.values()),
        loss=sum(loss * n for loss, n in losses) / sum(n for _, n in losses) if losses else None,
        peers=len(contributions),
        seconds=receipt.seconds,
        **(parts or {}),
    )
