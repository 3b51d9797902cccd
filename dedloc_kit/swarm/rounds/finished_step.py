"""What a finished global step was made of, as its commit or reset says."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping

from hivemind.utils import get_dht_time

from dedloc_kit.records.orders import Decay, DecayOrder
from dedloc_kit.records.steps import Carried, Contribution, GlobalStep, LeftOut, Receipt
from dedloc_kit.swarm.chain import files
from dedloc_kit.swarm.consensus.chain import ChainRecord
from dedloc_kit.swarm.consensus.records import Commit, Reset
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.p2p.adapters import KeyVerifier


def receipt_of(record: ChainRecord, time: float, seconds: float = 0.0) -> Receipt:
    """Of the step that a record led to; a reset that a person chose takes over an earlier state with its step.

    :param time: when the step was taken; :param seconds: from the full batch to the averaged gradient
    """
    step = record.value.step if isinstance(record, Commit) else record.step - 1
    return Receipt(step=step, round=record.link, time=time, seconds=seconds, record=files.encode(record))


def record_in(receipt: Receipt) -> ChainRecord:
    """Raises ValueError unless the receipt holds the record that it names."""
    record: ChainRecord = files.decode(receipt.record, *files.RECORDS)
    step = record.value.step if isinstance(record, Commit) else record.step - 1
    if (record.link, step) != (receipt.round, receipt.step):
        raise ValueError("the receipt of another step")
    return record


def check_signed(record: ChainRecord, organizer: str) -> None:
    """Raises ValueError unless a record that came without its chain is signed by those that it names."""
    verifier = KeyVerifier()
    if isinstance(record, Reset):
        record.check_signature(organizer, verifier)
    else:
        for entry in record.value.counted:
            entry.verify(verifier)


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


def told(step: int, state: str, factor: float) -> str:
    """A rollback in words. :param state: which one, as far as this peer knows"""
    rate = "" if factor == 1 else f", with {factor:.4g} times its learning rate"
    return f"the organizer lets global step {step} take over {state}{rate}"


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
