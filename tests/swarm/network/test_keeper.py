"""What a node of the directory takes, keeps and hands out; tests/swarm/hostile attacks real ones."""

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hivemind.dht.protocol import DHTProtocol as HivemindsProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord
from hivemind.utils import MSGPackSerializer, get_dht_time

from dedloc_kit.records.orders import MAX_REFUSED, Decay, Instructions, Notice, shortened
from dedloc_kit.records.record import Record as AnyRecord
from dedloc_kit.records.steps import Contribution
from dedloc_kit.serving.offer import MAX_VERSIONS, Release
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.keeper import CLOCK_SECONDS, MAX_RECORDS, DHTProtocol, Keeper, Storage
from dedloc_kit.swarm.network.kinds import (
    CONTRIBUTIONS,
    NOTICE,
    PROGRESS,
    RELEASE,
    Kind,
    share_of,
)
from dedloc_kit.swarm.network.names import Names
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, a_signer, progress

NAMES = Names(RUN_ID)
KEY = DHTID.generate(PROGRESS.key(NAMES))
ADDRESS = f"/dns4/{'x' * 95}/tcp/31337/p2p/{'Q' * 40}"


@pytest.fixture(scope="module")
def asha(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(an_identity(tmp_path_factory.mktemp("asha") / "identity.key"))


@pytest.fixture(scope="module")
def organizer(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return Signer(an_identity(tmp_path_factory.mktemp("organizer") / "identity.key"))


@pytest.fixture
def keeper(organizer: Signer) -> Keeper:
    return Keeper(organizer, RUN_ID, organizer.peer)


def contribution(**values: Any) -> Contribution:
    defaults = {"run_id": RUN_ID, "step": 1, "session": "ab", "samples": 3, "session_samples": 3, "loss": 1.0}
    return Contribution(**{**defaults, "name": "x", "time": get_dht_time(), **values})


def signed(signer: Signer, key: str, value: object, seconds: float) -> DHTRecord:
    """As it lies in the DHT; `value` may be bytes, which are then what is signed."""
    body = value if isinstance(value, bytes) else MSGPackSerializer.dumps(plain(value))
    subkey = MSGPackSerializer.dumps(signer.subkey)
    record = DHTRecord(DHTID.generate(key).to_bytes(), subkey, body, get_dht_time() + seconds)
    return replace(record, value=signer.signed(record))


def plain(value: object) -> object:
    return value.model_dump() if isinstance(value, AnyRecord) else value


def test_each_kind_is_taken_up_to_its_limits(keeper: Keeper, asha: Signer, organizer: Signer) -> None:
    wide = "\u20ac" * 64
    told = Instructions(
        paused=True,
        last_step=2**53,
        announcement="\u20ac" * 200,
        decay_order="A" * 1280,
        decay=Decay(start=2**53, steps=2**53),
    )
    largest = progress(
        round="f" * 64,
        sketch=(1.0,) * 8,
        name=wide,
        team=wide,
        device=wide,
        addresses=(ADDRESS,) * 4,
        instructions=told,
        listed=True,
        upload=1e12,
    )
    volunteers = largest.model_copy(update={"instructions": None, "reached": "A" * 1280})
    notice = Notice(run_id=RUN_ID, time=1.0, refused=shortened([organizer.peer] * MAX_REFUSED))
    release = Release(run_id=RUN_ID, versions=("ab" * 32,) * MAX_VERSIONS, time=1.0)
    good = [
        signed(asha, PROGRESS.key(NAMES), largest, PROGRESS.seconds),
        signed(asha, PROGRESS.key(NAMES), volunteers, PROGRESS.seconds),
        signed(asha, PROGRESS.shares(NAMES)[share_of(asha.peer)], progress(), 15.0),
        signed(asha, PROGRESS.key(NAMES), None, 15.0),
        signed(asha, CONTRIBUTIONS.key(NAMES), contribution(), CONTRIBUTIONS.seconds + CLOCK_SECONDS - 1.0),
        signed(asha, CONTRIBUTIONS.shares(NAMES)[share_of(asha.peer)], contribution(), 3600.0),
        signed(organizer, NOTICE.key(NAMES), notice, NOTICE.seconds),
        signed(organizer, RELEASE.key(NAMES), release, RELEASE.seconds),
    ]
    assert [keeper.validate(record) for record in good] == [True] * len(good)
    assert not keeper.refused()
    assert keeper.strip_value(good[0]) == MSGPackSerializer.dumps(largest.model_dump())


KINDS: dict[str, Kind[Any]] = {kind.record.wire: kind for kind in (PROGRESS, CONTRIBUTIONS, NOTICE, RELEASE)}
BAD: dict[str, tuple[str, Callable[[Signer], DHTRecord]]] = {
    "no key of the run": ("does not have", lambda me: signed(me, "anything", progress(), 15.0)),
    "a key of another run": ("does not have", lambda me: signed(me, "other-0123456789abcdef_progress", progress(), 15)),
    "a share of others": (
        "for other peers",
        lambda me: signed(me, PROGRESS.shares(NAMES)[share_of(me.peer) - 1], progress(), 15.0),
    ),
    "another kind": ("Contribution: ", lambda me: signed(me, CONTRIBUTIONS.key(NAMES), progress(), 15.0)),
    "another run": (
        "of another run",
        lambda me: signed(me, PROGRESS.key(NAMES), progress(run_id="other-0123456789abcdef"), 15.0),
    ),
    "an unknown field": (
        "not a known key",
        lambda me: signed(me, PROGRESS.key(NAMES), {**progress().model_dump(), "more": 1}, 15.0),
    ),
    "no msgpack": ("Progress: ", lambda me: signed(me, PROGRESS.key(NAMES), b"\xc1", 15.0)),
    "nothing": ("Progress: ", lambda me: signed(me, PROGRESS.key(NAMES), b"", 15.0)),
    "who left gave nothing": ("Contribution: ", lambda me: signed(me, CONTRIBUTIONS.key(NAMES), None, 15.0)),
    "a notice of somebody": (
        "not of the organizer",
        lambda me: signed(me, NOTICE.key(NAMES), Notice(run_id=RUN_ID, time=1.0), 15.0),
    ),
    "a version of somebody": (
        "not of the organizer",
        lambda me: signed(me, RELEASE.key(NAMES), Release(run_id=RUN_ID, versions=("ab" * 32,), time=1.0), 15.0),
    ),
    "too long a life": ("for more than 60 s", lambda me: signed(me, PROGRESS.key(NAMES), progress(), 11 * 86400.0)),
    "an endless life": ("for more than 60 s", lambda me: signed(me, PROGRESS.key(NAMES), progress(), math.inf)),
    "no number as its life": ("for more than 60 s", lambda me: signed(me, PROGRESS.key(NAMES), progress(), math.nan)),
    "too large": ("more than 4096 bytes", lambda me: signed(me, PROGRESS.key(NAMES), b"x" * 4096, 15.0)),
    "not signed": (
        "not signed",
        lambda me: replace(
            signed(me, PROGRESS.key(NAMES), progress(), 15.0), value=MSGPackSerializer.dumps(progress().model_dump())
        ),
    ),
    "a changed value": (
        "signature",
        lambda me: (r := signed(me, PROGRESS.key(NAMES), progress(), 15.0)) and replace(r, value=b"x" + r.value),
    ),
    "another key's signature": (
        "signature",
        lambda me: replace(
            signed(me, PROGRESS.key(NAMES), progress(), 15.0),
            key=DHTID.generate(PROGRESS.shares(NAMES)[share_of(me.peer)]).to_bytes(),
        ),
    ),
    "a longer life than was signed": (
        "signature",
        lambda me: replace(signed(me, PROGRESS.key(NAMES), progress(), 15.0), expiration_time=get_dht_time() + 50.0),
    ),
    "no owner": (
        "no owner",
        lambda me: replace(signed(me, PROGRESS.key(NAMES), progress(), 15.0), subkey=MSGPackSerializer.dumps("asha")),
    ),
    "another way to pack the owner": (
        "no owner",
        lambda me: replace(
            signed(me, PROGRESS.key(NAMES), progress(), 15.0),
            subkey=b"\xc6" + len(me.subkey).to_bytes(4, "big") + me.subkey,
        ),
    ),
    "an endless owner": (
        "more than 4096 bytes",
        lambda me: replace(signed(me, PROGRESS.key(NAMES), progress(), 15.0), subkey=b"x" * 100_000),
    ),
    "a value that is no bytes": (
        "bytes",
        lambda me: replace(signed(me, PROGRESS.key(NAMES), progress(), 15.0), value=5),
    ),
    "a time that is no number": (
        "for more than 60 s",
        lambda me: replace(signed(me, PROGRESS.key(NAMES), progress(), 15.0), expiration_time="x"),
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_record_is_refused_and_counted_that_has(keeper: Keeper, asha: Signer, kind: str) -> None:
    reason, make = BAD[kind]
    assert not keeper.validate(make(asha))
    ((told, times),) = keeper.refused().items()
    assert reason in told
    assert times == 1
    assert not keeper.refused(), "what was told once is not told again"


def test_what_has_expired_is_no_trouble_and_not_believed(keeper: Keeper, asha: Signer) -> None:
    assert not keeper.validate(signed(asha, PROGRESS.key(NAMES), progress(), -1.0))
    assert not keeper.refused()


# What is kept


def test_who_is_there_is_not_pushed_out_by_many_who_come_and_the_organizer_finds_a_place(organizer: Signer) -> None:
    storage, later = Storage(organizer.peer), get_dht_time() + 15.0
    first = a_signer(0).subkey
    everyone = [first, *(b"%d" % number for number in range(1, MAX_RECORDS))]
    assert all(storage.store_subkey(KEY, subkey, b"x", later) for subkey in everyone)
    stranger = a_signer(1).subkey
    assert not storage.store_subkey(KEY, stranger, b"x", later + 45.0), "though it would stay longer"
    assert storage.store_subkey(KEY, first, b"newer", later + 1.0)
    assert storage.store_subkey(KEY, organizer.subkey, b"x", later)
    found = storage.get(KEY)
    assert found is not None
    assert set(found.value.data) == {*everyone, organizer.subkey}
    assert found.value.get(first).value == b"newer"
    assert storage.store_subkey(DHTID.generate("another key"), stranger, b"x", later)


def test_a_place_is_free_again_when_its_record_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, now = Storage("", most=1), get_dht_time()
    assert storage.store_subkey(KEY, a_signer(0).subkey, b"x", now + 15.0)
    assert not storage.store_subkey(KEY, a_signer(1).subkey, b"x", now + 15.0)
    monkeypatch.setattr("dedloc_kit.swarm.network.keeper.get_dht_time", lambda: now + 16.0)
    assert storage.get(KEY) is None
    assert KEY not in storage
    assert not list(storage.items())
    assert storage.store_subkey(KEY, a_signer(1).subkey, b"x", now + 30.0)


def test_an_old_record_that_comes_again_changes_nothing() -> None:
    storage, now = Storage(""), get_dht_time()
    storage.store_subkey(KEY, b"asha", b"new", now + 60.0)
    for _ in range(3):
        assert not storage.store_subkey(KEY, b"asha", b"old", now + 15.0)
    ((key, found),) = storage.items()
    assert (key, found.expiration_time) == (KEY, now + 60.0)
    assert found.value.get(b"asha").value == b"new"


def test_what_a_search_finds_elsewhere_is_not_taken_up() -> None:
    storage, now = Storage(""), get_dht_time()
    storage.store_subkey(KEY, b"asha", b"x", now + 60.0)
    found = storage.get(KEY)
    assert found is not None
    found.value.store(b"somebody", b"x", now + 60.0)
    again = storage.get(KEY)
    assert again is not None
    assert list(again.value.data) == [b"asha"]


def test_nothing_is_kept_of_a_value_without_an_owner_a_question_or_a_record_that_comes_again() -> None:
    storage, later = Storage(""), get_dht_time() + 60.0
    assert not storage.store(KEY, b"x", later)
    assert storage.get(KEY) is None
    assert storage.store_subkey(KEY, b"asha", b"x", later)
    size = len(pickle.dumps(storage))
    for number in range(1000):
        assert storage.get(DHTID.generate(number)) is None
        assert not storage.store_subkey(KEY, b"asha", b"x", later)
    assert len(pickle.dumps(storage)) == size


def test_of_an_answer_what_is_valid_is_believed_and_nothing_that_it_says_of_itself(
    keeper: Keeper, asha: Signer
) -> None:
    good = signed(asha, PROGRESS.key(NAMES), progress(), 15.0)
    answer = DictionaryDHTValue()
    answer.data.update({b"%d" % number: (b"\xc1", good.expiration_time) for number in range(5)})
    answer.data[asha.subkey] = (good.value, good.expiration_time)
    answer.data[5] = (b"x", math.nan)
    answer.maxsize = "x"
    protocol = DHTProtocol(_initialized_with_create=True)
    protocol.record_validator = keeper
    assert protocol._validate_dictionary(KEY.to_bytes(), answer)
    assert answer.data == {asha.subkey: (good.value, good.expiration_time)}
    assert answer.maxsize == math.inf
    assert DHTProtocol.__name__ == HivemindsProtocol.__name__, "it is a part of the names on the wire"


def test_what_is_averaged_apart_has_keys_of_its_own_and_no_record_of_another_part_lies_there(
    organizer: Signer, asha: Signer
) -> None:
    stages = f"{RUN_ID}.stage0", f"{RUN_ID}.stage1"
    keeper = Keeper(organizer, RUN_ID, organizer.peer, stages)
    keys = [PROGRESS.key(Names(stage)) for stage in stages]
    said = [progress().model_copy(update={"run_id": stage}) for stage in stages]
    taken = [[keeper.validate(signed(asha, key, each, 15.0)) for each in said] for key in keys]
    assert taken == [[True, False], [False, True]]
    assert not keeper.validate(signed(asha, PROGRESS.key(NAMES), progress(), 15.0))
    assert 2 * keeper.most <= MAX_RECORDS
