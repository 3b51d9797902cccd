"""Who is at the two ends of a forwarded stream: what they say of themselves before TLS begins.

A greeting goes through the forwarder's hands, and holds nothing that it could use: a certificate whose key its author
alone has, signed by the author's libp2p key for this one reader, service and run, and the author's token, which is
worth nothing to anybody else. As each end makes a certificate for each stream, no part of one greeting fits another.
"""

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from dedloc_kit.records.record import Digest, PeerId, Record, RunId, SignedRecord
from dedloc_kit.swarm.network.gate import Gate, NotAdmitted
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.service import decode, encode

MAX_GREETING_BYTES = 12_000

ServiceName = Annotated[str, Field(max_length=64)]


class Credential(SignedRecord):
    """What one end of a forwarded stream signs for the other."""

    wire: ClassVar[str] = "credential"

    run_id: RunId
    to: PeerId
    service: ServiceName
    certificate: Digest
    """SHA-256 of the certificate that it shows."""


class Greeting(Record):
    credential: Annotated[bytes, Field(max_length=4096)]
    """Signed."""
    certificate: Annotated[bytes, Field(max_length=2048)]
    token: Annotated[bytes, Field(max_length=4096)]
    """As it is shown at a gate."""


@dataclass(frozen=True)
class Greeted:
    """Who is at the other end, if it holds the key of its certificate."""

    peer: str
    service: str
    certificate: bytes


class Greeter:
    """Says who this peer is, and reads who others are."""

    def __init__(self, gate: Gate, signer: Signer) -> None:
        self.gate, self._signer = gate, signer

    def write(self, to: str, service: str, certificate: bytes) -> bytes:
        """Takes a millisecond: it is signed."""
        digest = hashlib.sha256(certificate).hexdigest()
        credential = Credential(run_id=self.gate.run_id, to=to, service=service, certificate=digest)
        signed = self._signer.sign(credential)
        return encode(Greeting(credential=signed, certificate=certificate, token=self.gate.token))

    def read(self, data: bytes) -> Greeted:
        """Raises ValueError unless it is for this peer, and from one that may take part."""
        greeting = Greeting.parse(decode(data))
        peer, credential = self._signer.open(Credential, greeting.credential)
        if (credential.run_id, credential.to) != (self.gate.run_id, self._signer.peer):
            raise ValueError("the greeting is for another peer or run")
        if credential.certificate != hashlib.sha256(greeting.certificate).hexdigest():
            raise ValueError("the greeting is signed for another certificate")
        try:
            self.gate.admit(peer, greeting.token)
        except NotAdmitted as error:
            raise ValueError(str(error)) from None
        if not self.gate.admits(peer):
            raise ValueError(f"{peer} was sent away")
        return Greeted(peer, credential.service, greeting.certificate)


@contextmanager
def as_long_as_admitted(gate: Gate, peer: str) -> Iterator[None]:
    """Ends what this task does for a peer as soon as the peer is sent away; raises ConnectionAbortedError then.

    The gate itself does so for whoever it is directly connected to.
    """
    if not gate.admits(peer):
        raise ConnectionAbortedError(f"{peer} may not take part")
    try:
        with gate.serving(peer):
            yield
    except asyncio.CancelledError:
        if gate.admits(peer):
            raise
        raise ConnectionAbortedError(f"{peer} was sent away") from None
