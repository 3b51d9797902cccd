"""What a peer that trains says of itself."""

from typing import Annotated, ClassVar

from pydantic import Field

from dedloc_kit.records.orders import Instructions
from dedloc_kit.records.position import Position, Term
from dedloc_kit.records.record import (
    Address,
    Base64,
    Count,
    Digest,
    PeerText,
    Reason,
    RunId,
    SignedRecord,
    Time,
)


class Progress(SignedRecord):
    """What a peer says of itself every few seconds, signed; it lives in the DHT for some seconds only."""

    wire: ClassVar[str] = "progress"

    run_id: RunId
    step: Count
    """The global step whose parameters the peer holds."""
    round: Digest
    """The link of the commit or reset that led to it, so that peers whose paths parted find out."""
    term: Term = (0, "")
    incarnation: Count = 0
    """Of its vote, which ends with its vote file; 0 if it has none. See `swarm/consensus/records.py`."""
    samples: Count
    """Samples accumulated toward the next global step."""
    samples_per_second: Annotated[float, Field(ge=0, le=1e9)]
    boundary_seconds: Annotated[float, Field(ge=0, le=3600)]
    """Its time per microbatch; 0 before the first. In exact training others may have to wait so long until this peer
    can begin a round."""
    sketch: Annotated[tuple[float, ...], Field(max_length=8, strict=False)]
    """A few random projections of the parameters: peers that hold other parameters find out. Empty if the parameters
    are not finite."""
    follower: bool
    holds_state: bool = True
    """Not of who only lends its line: nobody asks it for a state."""
    instructions: Instructions | None = None
    """Of the coordinator only: nobody else is believed."""
    client_mode: bool
    addresses: Annotated[tuple[Address, ...], Field(max_length=4, strict=False)]
    """Where others reach this peer; empty in client mode."""
    reached: Base64 = ""
    """The organizer's signed word that it reached this peer, without which nobody is dialled in a run that is not open:
    a `Reached`. As text, for hivemind takes no record for valid in which there is a second signature."""
    listed: bool = False
    """Whether they may stand in the public invitation, if the organizer wants that too."""
    device: PeerText
    name: PeerText
    team: PeerText = ""
    upload: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """Bytes per second at which the peer got rid of its gradients in recent rounds; none before the first."""
    files: Count = 0
    """Of the training data, where any are lost for this peer."""
    unreadable_files: Count = 0
    """How many of them this peer could not read, or not to their end."""
    bad_rows: Count = 0
    """Rows of the training data that this peer had to leave out."""
    session: Digest = ""
    """Names this session, as in its contributions: two at once under one key are seen."""
    since: Time = 0.0
    """When it began, by the clock of the directory."""
    restarted: Reason = ""
    """Why the training of this peer stopped before it was started again; for the organizer."""
    skipped: Count = 0
    """Microbatches in a row that this peer left out, since its loss or gradient was not finite."""
    fixed: bool = False
    """Whether what this peer computes from now on is for the global step after the next one."""
    computed: Time = 0.0
    """When it finished its last microbatch; 0 before the first."""
    time: Time

    @property
    def position(self) -> Position:
        """Where it is on the chain. Raises ValueError if no chain is so long."""
        same = {name: value for name, value in vars(self).items() if name in Position.model_fields}
        return Position.parse({**same, "step": self.step + 1, "head": self.round, "client": self.client_mode})
