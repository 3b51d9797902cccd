"""What a finished global step was made of, as its members signed it."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.config.run import RunConfig
from dedloc_kit.records.orders import Decay, DecayOrder, Rewind
from dedloc_kit.records.steps import Carried, Contribution, GlobalStep, LeftOut, Receipt
from dedloc_kit.swarm.directory.contributions import possible
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.trust.pledge import Pledged, contribution_kind
from dedloc_kit.swarm.trust.standing import check_standing


def opened(
    signer: Signer, run: RunConfig, organizer: str, step: int, round: str, signed: tuple[bytes, ...]
) -> dict[str, Contribution]:
    """Contributions to a step by peer; raises ValueError if one is not what it should be."""
    kind = contribution_kind(run.trust)
    contributions = dict(signer.open(kind, contribution) for contribution in signed)
    for peer, contribution in contributions.items():
        check_standing(signer, organizer, peer, contribution)
        if possible(contribution, run.run_id, run.global_batch).step != step:
            raise ValueError("a contribution is of another step")
        if isinstance(contribution, Pledged) and contribution.group != round:
            raise ValueError("a contribution was pledged to another round")
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


def decay_in(signer: Signer, run_id: str, contributions: Iterable[Contribution], organizer: str, rewound: int) -> int:
    """Over how many global steps the learning rate falls from the step with these contributions on; 0 if the organizer
    has not ordered it. All who see the same contributions in the same state find the same.

    :param rewound: the state's newest rewind
    """
    orders = {contribution.decay_order for contribution in contributions} - {""}
    return max((_ordered(signer, run_id, order, organizer, rewound) for order in orders), default=0)


def _ordered(signer: Signer, run_id: str, text: str, organizer: str, rewound: int) -> int:
    """Anybody may bring anything: what is not the organizer's order for this state orders nothing."""
    try:
        author, order = signer.open(DecayOrder, b64decode(text, validate=True))
    except ValueError:
        return 0
    return order.steps if (author, order.run_id, order.rewound) == (organizer, run_id, rewound) else 0


def decay_order(signer: Signer, run_id: str, steps: int, rewound: int) -> str:
    """The organizer's order, as members bring it to a round."""
    return b64encode(signer.sign(DecayOrder(run_id=run_id, steps=steps, rewound=rewound))).decode()


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
    receipt: Receipt,
    contributions: dict[str, Contribution],
    parts: Mapping[str, float] | None = None,
    left_out: LeftOut | None = None,
    carried: Mapping[str, Carried] | None = None,
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
        left_out=left_out,
        carried=dict(carried or {}),
        **(parts or {}),
    )
