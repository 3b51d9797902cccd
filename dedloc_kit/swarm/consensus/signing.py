"""Signed records: explicit wire names and canonical bytes."""

import hashlib
from functools import cached_property
from typing import Annotated, ClassVar, Self

from pydantic import Field, ValidationError

from dedloc_kit.records.record import PeerId, Record
from dedloc_kit.swarm.p2p.seams import Signer, Verifier

MAX_BYTES = 16_777_216
"""Of one message: 4,096 entries and as many acknowledgements with RSA signatures fit."""
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256, in hexadecimal."""
Link = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
"""The hash of a commit or reset; empty before the first one."""
Signature = Annotated[str, Field(max_length=1280, pattern=r"^[0-9A-Za-z+/=]*$")]


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class WireRecord(Record):
    """A record with a name on the wire that does not change when its class is renamed."""

    wire: ClassVar[str]

    def to_bytes(self) -> bytes:
        """Everything, as JSON with fields in the order of their declaration."""
        return self.model_dump_json().encode()

    def changed(self, **values: object) -> Self:
        """A copy with other values, validated; nothing that was computed from the old ones stays."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | values)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises ValueError unless this is the one spelling of a valid record."""
        if len(data) > MAX_BYTES:
            raise ValueError(f"{cls.wire}: longer than {MAX_BYTES} bytes")
        try:
            found = cls.model_validate_json(data)
        except ValidationError as error:
            raise ValueError(f"{cls.wire}: {error.errors()[0]['msg']}") from None
        if found.to_bytes() != data:
            raise ValueError(f"{cls.wire}: not in its canonical spelling")
        return found


class Signed(WireRecord):
    """A record with the signature of its author over everything else."""

    signature: Signature = ""

    UNSIGNED: ClassVar[frozenset[str]] = frozenset({"signature"})

    @cached_property
    def content(self) -> bytes:
        """What is signed."""
        return f"{self.wire}\0{self.model_dump_json(exclude=set(self.UNSIGNED))}".encode()

    @cached_property
    def digest(self) -> str:
        """The hash of what is signed."""
        return sha256(self.content)

    def signed(self, signer: Signer) -> Self:
        """With this signature; the content stays as it was computed."""
        return self.model_copy(update={"signature": signer.sign(self.content)})

    def check_signature(self, author: PeerId, verifier: Verifier) -> None:
        """Raises ValueError unless the author has signed this."""
        if not verifier.valid(author, self.content, self.signature):
            raise ValueError(f"{self.wire}: not signed by {author}")
