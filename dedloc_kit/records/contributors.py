"""Who gave what to a run over all its sessions."""

from typing import Annotated

from pydantic import Field, WithJsonSchema

from dedloc_kit.records.record import Count, PeerId, PeerText, Record, Time

StepLoss = Annotated[
    tuple[Count, float],
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
"""A global step and its loss; described as a list, because many readers of descriptions know no tuples."""


CONTRIBUTORS_FILE = "contributors.json"
"""Who gave what until then, in a run's Hub repository, beside the training state: a list of `Given`."""


LEDGER_FOLDER = "ledger"
"""The whole ledger until then, beside it: one Parquet file for each of its tables, see `ledger.copying`."""


MAX_LEDGER_BYTES = 2**31
"""Of one of these files; two million contributions take less than a tenth of it."""


class Given(Record):
    """What one peer gave to a run over all its sessions; times by the coordinator's clock."""

    peer: PeerId
    name: PeerText
    samples: Count
    steps: Count
    first_seen: Time
    last_seen: Time


class Standing(Record):
    """Where one peer stands among all who gave to a run, for the peer's own view."""

    samples: Count
    """Its own, over all its sessions."""
    samples_total: Count
    """Everyone's."""
    rank: Count
    """1 for who gave most; 0 for who has given nothing yet."""
    contributors: Count
    volunteers: Count
    """Who trains now."""
    losses: Annotated[tuple[StepLoss, ...], Field(max_length=1000, strict=False)]
    """Global steps with their training loss, thinned to what a small chart shows."""
