"""A peer's key: it names the peer in the swarm and signs what it says, and anyone can check who has signed a record.

The form of signed records is hivemind's: a subkey `[owner:ssh-rsa KEY]`, a value that ends with `[signature:...]`. It
is read here alone, and only in the one spelling that its owner uses: hivemind looks for the two anywhere, takes what it
finds none in for a record that needs no signature, and calls that valid.
"""

import dataclasses
import os
import tempfile
from base64 import b64decode, b64encode
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2P, PeerID
from hivemind.proto import crypto_pb2
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPrivateKey, RSAPublicKey

from dedloc_kit.errors import UserError
from dedloc_kit.keys import peer_id
from dedloc_kit.machine.private import make_private
from dedloc_kit.records.record import SignedRecord
from dedloc_kit.swarm.network.unpacking import unpack

R = TypeVar("R", bound=SignedRecord)

# Above about 16 KB a DHT value can kill the DHT process; ours are far below.
MAX_RECORD_BYTES = 4096
MAX_OWNER_BYTES = 1024
_KEY_BITS = range(2048, 4097)
_EXPONENT = 65537
"""Of every key that libp2p makes; another one may make each check of a signature forty times as dear."""
_REMEMBERED_OWNERS = 2048
_OWNER, _SIGNATURE, _END = b"[owner:", b"[signature:", b"]"


class Identity:
    """A peer's RSA key, kept in one file: the same key names the peer and signs its records."""

    def __init__(self, path: Path) -> None:
        """Read the key, or make one. Raises UserError if the folder cannot be written."""
        self.path = path
        try:
            self.new = not path.exists()
            """Made just now: nobody else can be using it."""
            if self.new:
                _generate(path)
            data = path.read_bytes()
        except OSError as error:
            raise UserError(
                f"{path.parent} cannot be written ({error.strerror}); choose another with --folder"
            ) from None
        try:
            self.peer_id = PeerID.from_identity(data)
            self.key = RSAPrivateKey.__new__(RSAPrivateKey)  # the constructor would generate a new key
            self.key.__setstate__({"_private_key": crypto_pb2.PrivateKey.FromString(data).data})
        except Exception:  # protobuf and cryptography raise a dozen different errors for a damaged file
            raise UserError(f"{path} is not a peer identity; move it away and a new one is made") from None


def _generate(path: Path) -> None:
    """Write a new key so that a killed process leaves either no file or a whole one."""
    make_private(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        fresh = Path(folder) / "key"
        P2P.generate_identity(str(fresh))
        os.replace(fresh, path)


class Signer:
    """Signs this peer's records and opens those of others."""

    def __init__(self, identity: Identity) -> None:
        self._key = identity.key
        self.subkey = _subkey(identity.key.get_public_key())
        """The DHT subkey that only this peer can write."""
        self.peer = author(self.subkey)

    def sign(self, record: SignedRecord) -> bytes:
        """The record with its author and signature, for channels other than the DHT."""
        body = MSGPackSerializer.dumps(record.model_dump())
        return bytes(MSGPackSerializer.dumps([self.subkey, self.signed(_envelope(type(record), self.subkey, body))]))

    def signed(self, record: DHTRecord) -> bytes:
        """The value of a record of the DHT with this peer's signature."""
        return bytes(record.value + _SIGNATURE + self._key.sign(_content(record)) + _END)

    def open(self, kind: type[R], data: bytes) -> tuple[str, R]:
        """As `opened`."""
        return opened(kind, data)


def opened(kind: type[R], data: bytes) -> tuple[str, R]:
    """Author (peer id) and record; raises ValueError if the signature or the record is not valid."""
    if not isinstance(data, bytes) or len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"{kind.__name__}: not a signed record")
    try:
        subkey, value = unpack(data)
        if MSGPackSerializer.dumps([subkey, value]) != data:
            raise ValueError("it is not spelled as its author does")  # else anybody could make two of one
        body = verified(_envelope(kind, subkey, value), subkey)
        plain = unpack(body)
    except Exception as error:  # what is read may be of any type
        raise ValueError(f"{kind.__name__}: cannot be read ({error})") from None
    return author(subkey), kind.parse(plain)


def signed_content(kind: type[SignedRecord], subkey: bytes, body: bytes) -> bytes:
    """The bytes that a signature covers: the kind's `wire` name, the author's subkey and the record in msgpack."""
    return _content(_envelope(kind, subkey, body))


def verified(record: DHTRecord, subkey: bytes) -> bytes:
    """The value of a record without its signature; raises ValueError unless the owner in the subkey has signed it."""
    body, signature = parted(record.value)
    if not owner(subkey).verify(_content(dataclasses.replace(record, value=body)), signature):
        raise ValueError("the signature is not valid")
    return body


def parted(value: bytes) -> tuple[bytes, bytes]:
    """The value of a signed record without its signature, and that in base 64; raises ValueError if there is none."""
    body, _, rest = value.partition(_SIGNATURE)
    signature = rest[: -len(_END)]
    if not signature or rest != _canonical(signature) + _END:
        raise ValueError("the record is not signed")
    return body, signature


@lru_cache(_REMEMBERED_OWNERS)
def owner(subkey: bytes) -> RSAPublicKey:
    """The key in a signed record's subkey; raises ValueError unless it is the subkey that the key's owner writes."""
    try:
        if len(subkey) > MAX_OWNER_BYTES:
            raise ValueError("too long")
        key = serialization.load_ssh_public_key(subkey[len(_OWNER) : -len(_END)])
    except Exception:  # hostile bytes make cryptography raise several things that have nothing in common
        raise ValueError("the subkey names no owner") from None
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size not in _KEY_BITS or key.public_numbers().e != _EXPONENT:
        raise ValueError("the owner's key is of another kind than libp2p makes")
    found = RSAPublicKey(key)
    if subkey != _subkey(found):
        raise ValueError("the subkey does not name its owner as the owner does")
    return found


@lru_cache(_REMEMBERED_OWNERS)
def author(subkey: bytes) -> str:
    """The peer id (base58) of the RSA key in a signed record's subkey; raises ValueError if there is none."""
    der = serialization.load_ssh_public_key(owner(subkey).to_bytes()).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return peer_id(der)


def _subkey(key: RSAPublicKey) -> bytes:
    return bytes(_OWNER + key.to_bytes() + _END)


def _canonical(signature: bytes) -> bytes:
    """The one spelling of these bytes in base 64, for there are others that are read alike."""
    try:
        return b64encode(b64decode(signature, validate=True))
    except ValueError:
        return b""


def _content(record: DHTRecord) -> bytes:
    """What the signature is made for."""
    return bytes(MSGPackSerializer.dumps(dataclasses.astuple(record)))


def _envelope(kind: type[SignedRecord], subkey: bytes, value: bytes) -> DHTRecord:
    return DHTRecord(key=kind.wire.encode(), subkey=subkey, value=value, expiration_time=0.0)
