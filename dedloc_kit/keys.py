"""Peers' RSA keys where hivemind is not at hand: whose they are, and what they have signed."""

import base64
import hashlib
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from dedloc_kit.errors import UserError

IDENTITY_FILE = "identity.key"
"""A peer's key, in its folder."""
_RSA = b"\x08\x00\x12"
"""What a key begins with in libp2p's protobuf: its kind (0: RSA), then the field of its bytes. Their number follows."""
_PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)


def read_key(path: Path) -> rsa.RSAPrivateKey:
    """The key in an identity file, see `swarm.network.identity`; raises UserError if there is none."""
    try:
        data = path.read_bytes().removeprefix(_RSA)
        number = next(place for place, byte in enumerate(data) if byte < 0x80)  # the last byte of the number
        key = serialization.load_der_private_key(data[number + 1 :], password=None)
        if isinstance(key, rsa.RSAPrivateKey):
            return key
    except (OSError, ValueError, StopIteration, UnsupportedAlgorithm):
        pass
    raise UserError(f"{path} is not a peer's key that can be read; is this the run's folder?")


def key_id(path: Path) -> str:
    """The id of the peer whose key lies there; empty if none can be read."""
    try:
        return peer_id(base64.b64decode(public(read_key(path))))
    except UserError:
        return ""


def public(key: rsa.RSAPrivateKey) -> str:
    """The public half, as text."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(key.public_key().public_bytes(*form)).decode()


def peer_id(der: bytes) -> str:
    """The id (base58) of the peer with this public RSA key: the SHA-256 multihash of the key in protobuf.

    See the libp2p specification of peer ids.
    """
    number, length = b"", len(der)
    while length >= 0x80:
        number, length = number + bytes([length % 0x80 | 0x80]), length // 0x80
    digest = hashlib.sha256(_RSA + number + bytes([length]) + der).digest()
    return base58.b58encode(b"\x12\x20" + digest).decode()


def sign(key: rsa.RSAPrivateKey, content: bytes) -> str:
    """A signature, as text."""
    return base64.b64encode(key.sign(content, _PADDING, hashes.SHA256())).decode()


def has_signed(peer: str, public_key: str, content: bytes, signature: str) -> bool:
    """Whether this is the key of this peer, and the signature over the content is by it; any text may be given."""
    try:
        der = base64.b64decode(public_key, validate=True)
        key = serialization.load_der_public_key(der)
        if not isinstance(key, rsa.RSAPublicKey) or peer_id(der) != peer:
            return False
        key.verify(base64.b64decode(signature, validate=True), content, _PADDING, hashes.SHA256())
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
