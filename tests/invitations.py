"""Invitations as an organizer signs them, for tests without a coordinator."""

import base64
from collections.abc import Sequence

from cryptography.hazmat.primitives.asymmetric import rsa

from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.keys import peer_id, public
from dedloc_kit.records.invitation import Invitation


class Organizer:
    """Somebody with a key, and with an address at which nobody answers."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.peer = peer_id(base64.b64decode(public(self.key)))
        self.address = f"/ip4/127.0.0.1/tcp/9/p2p/{self.peer}"

    def invites(
        self,
        run: SwarmConfig,
        peers: Sequence[str] = (),
        url: str | None = None,
        parameters: int | None = None,
        wheel: str | None = None,
    ) -> Invitation:
        """The invitation to a swarm that it leads, with its own address or these."""
        return Invitation.of(run, tuple(peers) or (self.address,), url, parameters, wheel).signed(self.key)


ORGANIZER, MALLORY = Organizer(), Organizer()
NOBODY = ORGANIZER.address
invited = ORGANIZER.invites
