"""What all say of themselves who offer others something, whatever that is."""

from typing import Annotated

from pydantic import Field

from dedloc_kit.records.record import Address, Base64, Digest, PeerText, RunId, SignedRecord, Time


class Offer(SignedRecord):
    """What a peer says of itself every few seconds, signed; it lives in the DHT for some seconds only."""

    run_id: RunId
    forwards: bool = False
    """It connects peers that cannot reach each other."""
    client_mode: bool
    addresses: Annotated[tuple[Address, ...], Field(max_length=4, strict=False)]
    """Where others reach this peer; empty in client mode."""
    reached: Base64 = ""
    """The organizer's signed word that it reached this peer; see `Progress`."""
    device: PeerText
    name: PeerText
    team: PeerText = ""
    session: Digest = ""
    time: Time
