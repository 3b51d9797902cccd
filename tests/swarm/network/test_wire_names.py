"""Signed records have names on the wire that no class name decides, and their signed bytes do not change unseen."""

import hashlib
import re
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest

import dedloc_kit
from dedloc_kit.records.admission import Reached, Token
from dedloc_kit.records.experts import HostOffer
from dedloc_kit.records.orders import DecayOrder, Notice
from dedloc_kit.records.position import Position
from dedloc_kit.records.progress import Progress
from dedloc_kit.records.record import Count, Record, SignedRecord
from dedloc_kit.records.stages import StageOffer
from dedloc_kit.records.steps import Contribution
from dedloc_kit.serving.offer import Release, Serving
from dedloc_kit.swarm.consensus.letters import Letter, Pulse
from dedloc_kit.swarm.consensus.records import (
    Accepted,
    Entry,
    Epoch,
    Goodbye,
    PartReset,
    Piece,
    Promise,
    Reset,
    Value,
    Voter,
)
from dedloc_kit.swarm.consensus.signing import Signed
from dedloc_kit.swarm.network.identity import Signer, opened, owner, parted, signed_content
from dedloc_kit.swarm.network.kinds import (
    CONTRIBUTIONS,
    HOSTS,
    NOTICE,
    PROGRESS,
    RELEASE,
    SERVING,
    STAGES,
)
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.service import encode
from dedloc_kit.swarm.network.unpacking import unpack
from dedloc_kit.swarm.p2p.adapters import SignedDigest
from dedloc_kit.swarm.remote.greeting import Credential
from dedloc_kit.swarm.trust.pledge import Pledged
from dedloc_kit.swarm.trust.standing import Standing
from tests.identities import an_identity
from tests.swarm.harness import a_signer

PACKAGE = Path(dedloc_kit.__file__).parent
RUN: dict[str, Any] = {"run_id": "demo-0123456789abcdef"}
HASH = bytes(range(32))
AT: dict[str, Any] = {"step": 3, "round": "cd", "samples": 8, "samples_per_second": 1.5}
OFFER = RUN | {"client_mode": True, "addresses": (), "device": "T4", "name": "asha", "session": "ab", "time": 1.5}
WHERE: dict[str, Any] = {"term": (1, HASH.hex()), "step": 3, "head": HASH.hex(), "incarnation": 1, "samples": 8}
POSITION = Position(**RUN, **WHERE, samples_per_second=1.5, boundary_seconds=0.2, time=1.5)
GAVE = RUN | {"step": 3, "session": "ab", "samples": 8, "session_samples": 16, "loss": 2.5, "name": "", "time": 1.5}
ROOTS: dict[str, Any] = dict.fromkeys(("parts", "before", "after", "work"), HASH)
PLEDGED = ROOTS | {"group": "cd", "microbatches": 2}
ASHA = Voter("QmAsha", 7)
INSTANCE: dict[str, Any] = RUN | {"part": "", "previous": "ab" * 32}
ENTRY = Entry(
    **INSTANCE, voter=ASHA, pieces=(Piece(hash="cd" * 32, samples=8, weight=8),), orders=("ef" * 32,), about="{}"
)
VALUE = Value(**INSTANCE, step=3, counted=(ENTRY,), weights=(8,), average="12" * 32)
ACCEPTED = Accepted(**INSTANCE, epoch=Epoch(1, "QmAsha", "34" * 32), link=VALUE.link, average="12" * 32, voter=ASHA)
SCOPE: dict[str, Any] = {"scope": "ab" * 32, "root": "QmAsha"}

GOLDEN: dict[str, SignedRecord] = {
    "a957f45606da94a3": Token(**RUN, peer="QmAsha", name="asha", time=1.5, expires=9.5),
    "ee689bf52918a62c": Reached(**RUN, peer="QmAsha", host="192.0.2.1", port=4001, time=1.5),
    "40e86e9e0bf20197": Contribution(**GAVE),
    "216d3c6ad658c073": Pledged(**GAVE, **PLEDGED),
    "226932a7912446b0": DecayOrder(**RUN, steps=100, rewound=0),
    "0ed09423de963231": Notice(**RUN, time=1.5, refused=HASH[:8], step=3, round="cd"),
    "6c0e46e964366102": Progress(**OFFER, **AT, boundary_seconds=0.2, sketch=(1.5, -2.0), follower=False),
    "8e65abf9da92df65": StageOffer(**OFFER, stage=1, state="online"),
    "f43e182dcbee8a0d": HostOffer(**OFFER, state="online"),
    "57cff483f4e598a8": Serving(**OFFER, version="ef", form="bfloat16", begin=0, end=2, state="online"),
    "a02fa34ac2e7dabe": Release(**RUN, versions=("ab" * 32,), time=1.5),
    "13cdfacd77465ea7": Standing(**RUN, peer="QmAsha", confirmed=8),
    "67a1d8aaf0490005": Credential(**RUN, to="QmAsha", service="echo", certificate="ef"),
    "096c0e13e7180b91": SignedDigest(digest=HASH),
}
"""By the beginning of the SHA-256 of what is signed."""
AGREEMENT: dict[str, Signed] = {
    "bb733284452c4901": ENTRY,
    "f944824d0c3db51a": ACCEPTED,
    "70d252939faedb80": Promise(**INSTANCE, epoch=Epoch(2, "QmBina", "34" * 32), voter=ASHA, accepted=ACCEPTED),
    "6206574223ca3aa5": Reset(
        **RUN, term=1, step=3, parts=(PartReset(part="", previous="ab" * 32, state="56" * 32),), coordinator=ASHA
    ),
    "63bc0204af2eb0c2": Goodbye(**RUN, part="", head="ab" * 32, voter=ASHA),
    "94ec757601884c23": Letter(**SCOPE, author="QmBina", kind="consensus/promise", whole="56" * 32, body="{}"),
    "3bc8bf6d84489ad7": Pulse(**SCOPE, count=2, received=(1, 0)),
}
"""Likewise, of the agreement on steps."""


def subclasses(kind: type[Record]) -> set[type[Record]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def named() -> list[tuple[str, type[Record]]]:
    """The wire names of the package's records, with their classes."""
    for path in PACKAGE.rglob("*.py"):
        if "wire: ClassVar[str] = " in path.read_text(encoding="utf-8"):
            import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
    ours = (kind for kind in subclasses(Record) if kind.__module__.startswith("dedloc_kit."))
    return sorted(((vars(kind)["wire"], kind) for kind in ours if "wire" in vars(kind)), key=lambda each: each[0])


def signed_digest(record: SignedRecord) -> str:
    content = signed_content(type(record), a_signer(1).subkey, encode(record))
    return hashlib.sha256(content).hexdigest()[:16]


def test_wire_names_are_short_and_unique() -> None:
    names = [name for name, _ in named()]
    assert len(set(names)) == len(names), names
    assert not [name for name in names if not re.fullmatch(r"[a-z][a-z/-]{2,31}", name)]


def test_every_signed_record_has_a_golden_digest() -> None:
    signed = {kind for _, kind in named() if issubclass(kind, SignedRecord | Signed)}
    assert {type(record) for record in (*GOLDEN.values(), *AGREEMENT.values())} == signed


def test_the_signed_bytes_of_a_record_do_not_change() -> None:
    assert {record.wire: signed_digest(record) for record in GOLDEN.values()} == {
        record.wire: digest for digest, record in GOLDEN.items()
    }
    assert {record.wire: record.digest[:16] for record in AGREEMENT.values()} == {
        record.wire: digest for digest, record in AGREEMENT.items()
    }


def test_the_link_of_a_step_does_not_change() -> None:
    assert VALUE.link[:16] == "b26210bba4c812c5"


def test_the_keys_of_the_directory_are_named_after_their_records() -> None:
    kinds = (PROGRESS, SERVING, STAGES, HOSTS, CONTRIBUTIONS, NOTICE, RELEASE)
    assert [kind.key(Names("demo-01")) for kind in kinds] == [
        "demo-01_progress",
        "demo-01_serving",
        "demo-01_stage-offer",
        "demo-01_host-offer",
        "demo-01_contribution",
        "demo-01_notice",
        "demo-01_release",
    ]


def test_a_signature_covers_the_content_that_has_a_golden_digest(tmp_path: Path) -> None:
    signer, record = Signer(an_identity(tmp_path / "key")), next(iter(GOLDEN.values()))
    subkey, value = unpack(signer.sign(record))
    body, signature = parted(value)
    assert (subkey, body) == (signer.subkey, encode(record))
    assert owner(subkey).verify(signed_content(Token, subkey, body), signature)


class Before(SignedRecord):
    wire: ClassVar[str] = "test/renamed"

    value: Count


class After(SignedRecord):
    """The same under another class name."""

    wire: ClassVar[str] = "test/renamed"

    value: Count


class Other(SignedRecord):
    wire: ClassVar[str] = "test/other"

    value: Count


def test_a_renamed_class_reads_what_was_signed_before_and_another_wire_name_does_not(tmp_path: Path) -> None:
    signer = Signer(an_identity(tmp_path / "key"))
    signed = signer.sign(Before(value=3))
    assert opened(After, signed) == (signer.peer, After(value=3))
    with pytest.raises(ValueError, match="signature"):
        opened(Other, signed)


def test_a_subclass_cannot_take_over_the_wire_name_of_its_base() -> None:
    with pytest.raises(TypeError, match=r"Nested must declare a wire name of its own; 'test/other' is"):
        type("Nested", (Other,), {})


def test_a_pledged_contribution_is_not_valid_as_a_plain_one(tmp_path: Path) -> None:
    signed = Signer(an_identity(tmp_path / "key")).sign(Pledged(**GAVE, **PLEDGED))
    with pytest.raises(ValueError, match="signature"):
        opened(Contribution, signed)
