"""One parser of owners and signatures: it and hivemind's agree, or it refuses."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from hivemind.dht.crypto import RSASignatureValidator
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer
from hivemind.utils.crypto import RSAPublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from dedloc_kit.swarm.network.identity import Identity, Signer, author, opened, verified
from tests.identities import an_identity
from tests.swarm.harness import a_signer
from tests.swarm.hostile.client import misspelt
from tests.swarm.network.doubling import Number


@pytest.fixture(scope="module")
def victims(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return an_identity(tmp_path_factory.mktemp("victim") / "identity.key")


@pytest.fixture(scope="module")
def victim(victims: Identity) -> Signer:
    return Signer(victims)


@pytest.fixture(scope="module")
def hiveminds(victims: Identity) -> RSASignatureValidator:
    return RSASignatureValidator(victims.key)


@pytest.fixture(scope="module")
def signed(victim: Signer, hiveminds: RSASignatureValidator) -> DHTRecord:
    """By hivemind."""
    record = DHTRecord(b"key", victim.subkey, b"abc", 1.0)
    return replace(record, value=hiveminds.sign_value(record))


def pieces(owner: bytes) -> st.SearchStrategy[bytes]:
    """Of what an owner is written with, and of what may be taken for it."""
    key = owner[len(b"[owner:ssh-rsa ") : -1]
    known = [b"[owner:", b"ssh-rsa", b" ", b"\n", b"]", b"\0", b"\t", b"=", b"==", b"ssh-ed25519 ", b"a comment", b"["]
    return st.sampled_from([*known, key, key[:-1], key[4:], key.lower(), owner]) | st.binary(max_size=4)


@st.composite
def edited(draw: st.DrawFn, text: bytes, owner: bytes) -> bytes:
    """With up to four edits, or none."""
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.sampled_from([start, start, start + 1, start + 4, len(text)]))
        text = text[:start] + draw(pieces(owner)) + text[end:]
    return text


def spellings(owner: bytes) -> st.SearchStrategy[bytes]:
    whole = st.lists(pieces(owner), max_size=8).map(b"".join)
    inside = st.lists(pieces(owner), max_size=6).map(lambda some: b"[owner:ssh-rsa " + b"".join(some) + b"]")
    return whole | inside | edited(owner, owner)


SOMEBODY = a_signer(1)


@settings(max_examples=500, deadline=None)
@given(spellings(SOMEBODY.subkey))
def test_an_owner_is_read_as_hivemind_reads_it_and_in_one_spelling_or_not_at_all(subkey: bytes) -> None:
    try:
        peer = author(subkey)
    except ValueError:
        return
    (key,) = RSASignatureValidator._PUBLIC_KEY_RE.findall(subkey)
    assert subkey == b"[owner:" + RSAPublicKey.from_bytes(key).to_bytes() + b"]"
    assert (peer == SOMEBODY.peer) == (subkey == SOMEBODY.subkey)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_signature_that_is_accepted_hivemind_accepts_too_and_it_is_cut_off_alike(
    data: st.DataObject, victim: Signer, hiveminds: RSASignatureValidator, signed: DHTRecord
) -> None:
    changed = replace(signed, value=data.draw(edited(signed.value, victim.subkey)))
    try:
        body = verified(changed, victim.subkey)
    except ValueError:
        return
    assert changed == signed, "there is no second spelling of a signature"
    assert hiveminds.validate(changed)
    assert body == hiveminds.strip_value(changed) == b"abc"


def test_what_is_signed_here_hivemind_takes_and_the_other_way_round(
    victim: Signer, hiveminds: RSASignatureValidator, signed: DHTRecord
) -> None:
    assert author(victim.subkey) == victim.peer
    assert verified(signed, victim.subkey) == b"abc"
    assert hiveminds.validate(replace(signed, value=victim.signed(replace(signed, value=b"abc"))))


def test_another_spelling_of_an_owner_names_nobody(victim: Signer) -> None:
    for name, subkey in misspelt(victim.subkey).items():
        with pytest.raises(ValueError, match="owner"):
            pytest.fail(f"{name} names {author(subkey)}")


@pytest.mark.parametrize("value", [b"", b"abc", b"abc[signature:]", b"abc[signature:AAAA]"])
def test_a_record_that_is_not_signed_is_not_valid(victim: Signer, value: bytes) -> None:
    with pytest.raises(ValueError, match="sign"):
        verified(DHTRecord(b"key", victim.subkey, value, 1.0), victim.subkey)


@pytest.mark.parametrize(("bits", "exponent"), [(1024, 65537), (8192, 65537), (2048, 3), (2048, 2**2000 + 1)])
def test_a_key_that_libp2p_does_not_make_owns_nothing(bits: int, exponent: int) -> None:
    key = RSAPublicKey(RSAPublicNumbers(exponent, 2 ** (bits - 1) + 2 ** (bits - 2) + 1).public_key())
    with pytest.raises(ValueError, match="owner"):
        author(b"[owner:" + key.to_bytes() + b"]")


def test_a_signed_record_has_one_spelling_or_others_could_make_two_of_one(victim: Signer) -> None:
    said = victim.sign(Number(value=3))
    assert opened(Number, said) == (victim.peer, Number(value=3))
    subkey, _ = MSGPackSerializer.loads(said)
    for other in (
        b"\xdc\x00\x02" + said[1:],  # an array with a longer head
        said[:1] + b"\xc6" + len(subkey).to_bytes(4, "big") + said[4:],  # bytes with one
        said.replace(b"\xc5" + len(subkey).to_bytes(2, "big"), b"\xda" + len(subkey).to_bytes(2, "big")),
    ):
        assert other != said
        with pytest.raises(ValueError, match=r"spelled|cannot be read"):
            opened(Number, other)
