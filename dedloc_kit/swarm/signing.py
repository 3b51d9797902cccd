"""Signed records: who says so can be checked by anyone, whatever way the record came."""

import re
from functools import lru_cache
from typing import TypeVar

from cryptography.hazmat.primitives import serialization
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPrivateKey

from dedloc_kit.keys import peer_id
from dedloc_kit.records import Record
from dedloc_kit.swarm.identity import Identity

R = TypeVar("R", bound=Record)

# Above about 16 KB a DHT value can kill the DHT process; ours are far below.
MAX_RECORD_BYTES = 4096
REMEMBERED_RECORDS = 1024
_OWNER = re.compile(RSASignatureValidator.PUBLIC_KEY_REGEX, re.DOTALL)


class Signer:
    """Signs this peer's records and opens those of others (with hivemind's own signature validator)."""

    def __init__(self, identity: Identity) -> None:
        self.peer = identity.peer_id.to_base58()
        self._validator = RSASignatureValidator(identity.key)

    @property
    def subkey(self) -> bytes:
        """The DHT subkey that only this peer can write: the DHT signs and verifies what is stored under it."""
        return bytes(self._validator.local_public_key)

    def sign(self, record: Record) -> bytes:
        """The record with its author and signature, for channels other than the DHT."""
        body = MSGPackSerializer.dumps(record.model_dump())
        signed = self._validator.sign_value(_envelope(type(record), self.subkey, body))
        return bytes(MSGPackSerializer.dumps([self.subkey, signed]))

    def open(self, kind: type[R], data: bytes) -> tuple[str, R]:
        """Author (peer id) and record; raises ValueError if the signature or the record is not valid."""
        if not isinstance(data, bytes) or len(data) > MAX_RECORD_BYTES:
            raise ValueError(f"{kind.__name__}: not a signed record")
        try:
            subkey, signed = MSGPackSerializer.loads(data)
            envelope = _envelope(kind, subkey, signed)
            valid = _OWNER.fullmatch(subkey) is not None and self._validator.validate(envelope)
            body = MSGPackSerializer.loads(self._validator.strip_value(envelope)) if valid else None
        except Exception as error:  # hostile bytes make msgpack and cryptography raise nearly anything
            raise ValueError(f"{kind.__name__}: cannot be read ({error})") from None
        if not valid:
            raise ValueError(f"{kind.__name__}: the signature is not valid")
        return author(subkey), kind.parse(body)


class RememberingValidator(RSASignatureValidator):
    """hivemind's, but what it has checked it does not compute again: the same records come with answer after answer."""

    def __init__(self, key: RSAPrivateKey) -> None:
        super().__init__(key)
        self._checked = lru_cache(REMEMBERED_RECORDS)(super().validate)

    def validate(self, record: DHTRecord) -> bool:
        return bool(self._checked(record))


def author(subkey: bytes) -> str:
    """The peer id (base58) of the RSA key in a signed record's subkey; raises ValueError if there is none."""
    match = _OWNER.fullmatch(subkey)
    if match is None:
        raise ValueError("the subkey names no owner")
    der = serialization.load_ssh_public_key(match.group(1)).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return peer_id(der)


def _envelope(kind: type[Record], subkey: bytes, value: bytes) -> DHTRecord:
    return DHTRecord(key=kind.__name__.encode(), subkey=subkey, value=value, expiration_time=0.0)
