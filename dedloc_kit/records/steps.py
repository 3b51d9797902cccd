"""What one global step was made of, and who counted in it."""

import itertools
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field

from dedloc_kit.records.record import (
    Base64,
    Count,
    Digest,
    PeerId,
    PeerText,
    Record,
    RunId,
    Seconds,
    SignedRecord,
    Time,
)

MAX_LOSS = 1e9
LABEL = 2**16
"""Weights are whole numbers, and a loss may count as a part of a label."""
MAX_CONFIRMED = 16
"""Hosts in one contribution: so it stays small, and in the next steps there is room for others."""


class Contribution(SignedRecord):
    """The samples of one peer that went into one global step, signed by the peer.

    `session_samples` counts everything this peer gave since it started, this contribution included,
    so that a collector which missed some contributions still knows the total.
    """

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    wire: ClassVar[str] = "contribution"

    run_id: RunId
    step: Count
    """The global step that these samples led to (the first one is 1)."""
    session: Digest
    samples: Count
    session_samples: Count
    loss: Annotated[float, Field(ge=-MAX_LOSS, le=MAX_LOSS)] | None
    """Mean training loss over the samples, or the nearest of these bounds; none when there are none."""
    name: PeerText
    time: Time
    decay_order: Base64 = ""
    """The organizer's signed order that the learning rate falls from this global step on, a `DecayOrder`: whoever has
    heard of it brings it. As text, for no signature may stand within another."""
    answered: dict[PeerId, Count] = Field(default={}, max_length=MAX_CONFIRMED)
    """Tokens that hosts of experts have answered for this peer since it started, forward and backward, once for each
    expert that they went to; of some of the hosts, where there are more."""
    weight: Count | None = None
    """What its gradient is over, in `LABEL`ths of a label; none: each sample counts as a label."""
    batch: Count | None = None
    """In a stage: how many samples the batch of this step holds in all, if this peer knows what drivers have begun."""


MAX_CHAIN_RECORD_BYTES = 2**24 + 100


class Receipt(Record):
    """The proof of one finished global step, for peers that missed it."""

    step: Count
    round: Digest
    """The link of the commit or reset that led here."""
    time: Time
    seconds: Seconds
    """From the full batch to the averaged gradient."""
    record: Annotated[bytes, Field(max_length=MAX_CHAIN_RECORD_BYTES)]
    """The commit or reset; see `swarm/chain/files.py`."""


Absence = Literal["did not come", "fell silent", "left in the middle", "sent nonsense", "was not counted"]
"""Why a peer does not count in a global step, as another peer saw it itself; the last one: that saw nothing amiss."""
MAX_ABSENT = 16
MAX_MEMBERS = 2048
"""Of an all-reduce."""


class LeftOut(Record):
    """Peers that were to come to a global step and do not count in it."""

    count: Annotated[int, Field(ge=1, le=2**53)]
    some: Annotated[dict[PeerId, Absence], Field(max_length=MAX_ABSENT)]
    """The first of them."""

    @classmethod
    def of(cls, absent: Mapping[str, Absence]) -> Self | None:
        """None if there is nobody."""
        some = dict(itertools.islice(sorted(absent.items()), MAX_ABSENT))
        return cls(count=len(absent), some=some) if absent else None


class Carried(Record):
    """What the line of a peer has carried that gives no samples, in one global step.

    See `swarm/allreduce/carried.py`.
    """

    bytes: Count
    """Of those who gave to the step, to and fro."""
    name: PeerText


class GlobalStep(Record):
    """One finished global step, as the coordinator saw it."""

    step: Count
    round: Digest
    time: Time
    samples: Count
    loss: float | None
    peers: Count
    """Members of the all-reduce, the followers included."""
    seconds: Seconds
    """From the full batch to the averaged gradient."""
    # The coordinator's time since the step before, in four parts that follow each other; none where it missed a step.
    compute: Seconds | None = None
    """Until the batch was full."""
    gather: Seconds | None = None
    """From then until the group stood."""
    average: Seconds | None = None
    apply: Seconds | None = None
    left_out: LeftOut | None = None
    """None if nobody was, as far as the coordinator was there."""
    carried: dict[PeerId, Carried] = Field(default={}, max_length=MAX_MEMBERS)
    """By whom alone lends its line; of a step that the coordinator missed nothing is known."""
