"""Personal codes, with which an organizer invites.

A code is a secret that is worth something to this run's coordinator only: it carries a keyed hash (HMAC-SHA256) that
nobody can make without the coordinator's key. It also names the run and the coordinator, so that a volunteer's machine
hands it to no other.
"""

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Annotated

from pydantic import Field

from dedloc_kit.access.denials import Denied, explained
from dedloc_kit.config.swarm import SwarmConfig
from dedloc_kit.config.trust import HubName
from dedloc_kit.errors import UserError
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.records.record import Record, Time

MACHINES = 10
"""Of one person at the same time, unless the organizer says otherwise."""
_MAC_BYTES = 16


class Code(Record):
    """What a personal code says."""

    run: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """The run's fingerprint."""
    organizer: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """A digest of the coordinator's peer id."""
    name: HubName
    minted: Time
    expires: Time
    machines: Annotated[int, Field(ge=1, le=1000)] = MACHINES
    """How many it lets in at the same time."""

    @classmethod
    def read(cls, text: str) -> "Code":
        """What a code says, true or not; raises NotWelcome if it is none."""
        try:
            return cls.model_validate_json(_decoded(text)[:-_MAC_BYTES])
        except ValueError:
            raise explained("unreadable") from None

    def check(self, run: SwarmConfig, organizer: str) -> None:
        """Raises NotWelcome unless it is meant for this run and coordinator: no other may see it."""
        if not self.is_for(run, organizer):
            raise explained("other run")

    def is_for(self, run: SwarmConfig, organizer: str) -> bool:
        """:param organizer: a coordinator's peer id"""
        return (self.run, self.organizer) == (run.fingerprint, digest(organizer))

    def signed(self, folder: Path) -> str:
        """The code as it is given away; `folder` is the coordinator's."""
        content = self.model_dump_json().encode()
        return base64.urlsafe_b64encode(content + _mac(_key(folder), content)).decode().rstrip("=")


def opened(text: str, run: SwarmConfig, organizer: str, folder: Path) -> Code:
    """A code that this coordinator made for this run; raises Denied if it is none."""
    if not text:
        raise Denied("no code")
    try:
        code, data = Code.read(text), _decoded(text)
    except UserError:
        raise Denied("unreadable") from None
    if not code.is_for(run, organizer):
        raise Denied("other run")
    if not hmac.compare_digest(_mac(_key(folder), data[:-_MAC_BYTES]), data[-_MAC_BYTES:]):
        raise Denied("forged")
    return code


def digest(peer: str) -> str:
    """What a code says of its coordinator."""
    return hashlib.sha256(peer.encode()).hexdigest()[:16]


def _decoded(text: str) -> bytes:
    """Raises ValueError."""
    compact = "".join(text.split())
    return base64.b64decode(compact + "=" * (-len(compact) % 4), altchars=b"-_", validate=True)


def _key(folder: Path) -> bytes:
    """The key for codes, which only whoever has the coordinator's own can make."""
    try:
        return hmac.digest((folder / IDENTITY_FILE).read_bytes(), b"dedloc_kit personal codes", "sha256")
    except OSError as error:
        raise UserError(
            f"{folder / IDENTITY_FILE} cannot be read ({error.strerror}); is this the run's folder?"
        ) from None


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256")[:_MAC_BYTES]
