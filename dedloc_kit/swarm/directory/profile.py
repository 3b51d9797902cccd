"""What a peer is throughout a session."""

from dataclasses import dataclass
from typing import Any

from dedloc_kit.records.offer import Offer


@dataclass(frozen=True)
class Profile:
    """Facts about a peer that travel together: `Progress` has them all by these names, and an `Offer` most of them."""

    session: str
    """Hexadecimal name of this session; contributions of one session count up."""
    name: str
    team: str
    device: str
    """In words."""
    follower: bool
    """It contributes no samples."""
    client_mode: bool
    """Nobody can reach it."""
    addresses: tuple[str, ...]
    """Where others reach it; empty in client mode."""
    reached: str
    """The organizer's signed word that it reached this peer there; see `Progress`."""
    listed: bool
    """Whether the addresses may stand in the public invitation."""
    holds_state: bool = True
    """Others can have the training state from this peer."""

    def offered(self) -> dict[str, Any]:
        """What an `Offer` says of it."""
        return {name: value for name, value in vars(self).items() if name in Offer.model_fields}
