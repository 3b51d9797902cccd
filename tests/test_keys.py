"""Keys and signatures without hivemind are the ones that the swarm knows."""

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from dedloc_kit.errors import UserError
from dedloc_kit.keys import IDENTITY_FILE, has_signed, peer_id, public, read_key, sign
from dedloc_kit.swarm.network.identity import Identity, Signer, author
from tests.invitations import MALLORY, ORGANIZER


def test_a_peer_has_the_same_id_here_and_in_the_swarm(tmp_path: Path) -> None:
    identity = Identity(tmp_path / IDENTITY_FILE)
    der = base64.b64decode(public(read_key(tmp_path / IDENTITY_FILE)))
    assert peer_id(der) == str(identity.peer_id) == author(Signer(identity).subkey)


@pytest.mark.parametrize("content", [b"", b"damaged", b"\x08\x00\x12", b"\x08\x00\x12\x05abcde", b"\xff" * 2000])
def test_what_is_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / IDENTITY_FILE).write_bytes(content)
    with pytest.raises(UserError, match="is not a peer's key"):
        read_key(tmp_path / IDENTITY_FILE)


def test_a_signature_counts_for_its_content_its_peer_and_its_key_alone() -> None:
    key, signature = public(ORGANIZER.key), sign(ORGANIZER.key, b"word")
    assert has_signed(ORGANIZER.peer, key, b"word", signature)
    assert not has_signed(ORGANIZER.peer, key, b"other", signature)
    assert not has_signed(MALLORY.peer, key, b"word", signature)
    assert not has_signed(ORGANIZER.peer, public(MALLORY.key), b"word", sign(MALLORY.key, b"word"))
    assert not has_signed(ORGANIZER.peer, key, b"word", sign(MALLORY.key, b"word"))


@pytest.mark.parametrize("text", ["", "=", "a", "é", base64.b64encode(b"\x30\x82" * 9).decode(), "A" * 2000])
def test_whatever_stands_in_place_of_a_key_or_a_signature_is_none(text: str) -> None:
    key, signature = public(ORGANIZER.key), sign(ORGANIZER.key, b"word")
    assert not has_signed(ORGANIZER.peer, text, b"word", signature)
    assert not has_signed(ORGANIZER.peer, key, b"word", text)


def test_a_key_of_another_kind_is_none() -> None:
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    other = ec.generate_private_key(ec.SECP256R1()).public_key().public_bytes(*form)
    assert not has_signed(peer_id(other), base64.b64encode(other).decode(), b"word", sign(ORGANIZER.key, b"word"))


@pytest.mark.parametrize("bits", [2048, 3072])
def test_the_id_of_a_key_of_any_length_is_that_of_the_swarm(bits: int) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=bits)
    ssh = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert peer_id(base64.b64decode(public(key))) == author(b"[owner:" + ssh + b"]")
