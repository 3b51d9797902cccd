"""Attacks on the directory: of an invite run by one who has only the invitation, or was let in; by what a node answers.

What is attacked is a real coordinator with a real volunteer, and after each attack the run must go on.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.routing import DHTID

from dedloc_kit.access.admission import invite
from dedloc_kit.config.machine import PeerConfig
from dedloc_kit.events import Failed, Left
from dedloc_kit.keys import IDENTITY_FILE
from dedloc_kit.records.admission import Token
from dedloc_kit.records.invitation import INVITATION_FILE
from dedloc_kit.records.orders import Instructions, Notice, shortened
from dedloc_kit.records.progress import Progress
from dedloc_kit.swarm.directory.directory import Directory
from dedloc_kit.swarm.network.identity import Signer
from dedloc_kit.swarm.network.keeper import node_id_of
from dedloc_kit.swarm.network.kinds import CONTRIBUTIONS, NOTICE, PROGRESS
from dedloc_kit.swarm.network.names import Names
from dedloc_kit.swarm.network.node import addresses_of
from tests.identities import an_identity
from tests.swarm.harness import RUN_ID, Peer, Swarm, gate_of, open_node, processes_of, progress, wait_until
from tests.swarm.hostile.client import Hostile, Raw, misspelt, pack
from tests.tiny import tiny_run

RUN = tiny_run("attacked", access="invite")
DAY = 86400.0
PROGRESS_KEY, NOTICE_KEY = PROGRESS.key(Names(RUN.run_id)), NOTICE.key(Names(RUN.run_id))
LETTING_GO = 50 * 2**20
"""Bytes by which the coordinator's processes may grow while 100 MB are thrown at them: what is on its way, and what
the garbage collectors have not got round to."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm(RUN, tmp_path_factory.mktemp("swarm")) as swarm:
        coordinator = swarm.coordinator()
        folder = coordinator.config.folder
        (folder / INVITATION_FILE).write_text(swarm.invitation.model_dump_json())
        code = invite(folder, "asha", days=1)
        swarm.volunteer("asha", {"DEDLOC_CODE": code, "TINY_PAUSE": "0.05"}, microbatch=2).wait_for_step(1)
        yield swarm


def organizer_of(swarm: Swarm) -> Signer:
    """Its public key can be had by anyone: libp2p shows it when a connection begins."""
    return Signer(an_identity(swarm.peers[0].config.folder / IDENTITY_FILE))


def victim_of(swarm: Swarm) -> bytes:
    return Signer(an_identity(swarm.peers[1].config.folder / IDENTITY_FILE)).subkey


@pytest.fixture
def mallory(swarm: Swarm, tmp_path: Path) -> Iterator[Hostile]:
    """Has the invitation, which is public."""
    with Hostile(swarm.invitation.peers, RUN.run_id, tmp_path) as mallory:
        yield mallory


@pytest.fixture
def guest(swarm: Swarm, mallory: Hostile) -> Hostile:
    """The same, let in by the organizer."""
    assert mallory.do(mallory.show(token(organizer_of(swarm), mallory.peer))) == {"directory", "averager"}
    return mallory


def token(signer: Signer, peer: str) -> bytes:
    now = time.time()
    return signer.sign(Token(run_id=RUN.run_id, peer=peer, name="x", time=now, expires=now + 3600.0))


def it_goes_on(swarm: Swarm) -> None:
    """Nobody has left, and global steps are taken."""
    coordinator, volunteer = swarm.peers
    for peer in (coordinator, volunteer):
        peer.wait_for_step(peer.steps[-1].step.step + 2)
    assert not any(isinstance(event, Left | Failed) for event in volunteer.events), volunteer.events[-3:]


def taken(hostile: Hostile, *records: Raw) -> bool:
    """Does the organizer's node say that it keeps any of them? It may refuse to hear them at all."""
    try:
        return any(hostile.do(hostile.store(*records), 60.0))
    except Exception:
        return False


def owners(hostile: Hostile, key: str) -> set[Any]:
    return set(hostile.do(hostile.find(key)))


# Nested tuples overflowed the stack of whoever read them


@pytest.mark.real
def test_nested_bytes_at_the_door_and_in_the_directory_end_no_process(swarm: Swarm, mallory: Hostile) -> None:
    deep = b"\x90"
    for _ in range(200):
        deep = b"\xc9" + (len(deep) + 1).to_bytes(4, "big") + b"\x40\x91" + deep
    assert mallory.do(mallory.show(deep)) == set()
    assert mallory.do(mallory.show(token(organizer_of(swarm), mallory.peer))) == {"directory", "averager"}
    later = time.time() + 15.0
    for subkey, value in ((b"", deep), (deep, b"x"), (pack(mallory.signer.subkey), deep)):
        assert not taken(mallory, Raw(PROGRESS_KEY, subkey, value, later))
    it_goes_on(swarm)


# A newline forged anyone's signature


@pytest.mark.soak
def test_no_spelling_of_the_organizer_forges_a_token(swarm: Swarm, mallory: Hostile) -> None:
    organizer = organizer_of(swarm)
    now = time.time()
    body = pack(Token(run_id=RUN.run_id, peer=mallory.peer, name="x", time=now, expires=now + 3600.0).model_dump())
    for name, owner in {"as it is": organizer.subkey, **misspelt(organizer.subkey)}.items():
        for value in (body, mallory.signed(Raw(Token.wire.encode(), owner, body, 0.0)).value):
            assert mallory.do(mallory.show(pack([owner, value]))) == set(), name
    with pytest.raises(Exception, match=r"."):
        owners(mallory, PROGRESS_KEY)
    it_goes_on(swarm)


@pytest.mark.real
def test_no_spelling_of_a_peer_forges_its_progress_or_the_organizers_word(swarm: Swarm, guest: Hostile) -> None:
    organizer, victim = organizer_of(swarm).subkey, victim_of(swarm)
    wait_until(lambda: owners(guest, PROGRESS_KEY) == {organizer, victim}, "the two of the run are not there")
    over = Instructions(paused=True, last_step=1, announcement="the run is over")
    kicked = Notice(run_id=RUN.run_id, time=time.time() + 60.0, refused=shortened([swarm.peers[1].joined.peer]))
    lies: list[tuple[str, bytes, Progress | Notice]] = [
        (PROGRESS_KEY, victim, said(step=900)),
        (PROGRESS_KEY, organizer, said(instructions=over, follower=True)),
        (NOTICE_KEY, organizer, kicked),
    ]
    for key, owner, lie in lies:
        for name, subkey in {"as it is": owner, "its own": guest.signer.subkey, **misspelt(owner)}.items():
            raw = Raw.under(key, subkey, lie.model_dump(), 60.0)
            text = replace(raw, subkey=pack(subkey.decode("latin1")))
            forged = [raw, replace(raw, cached=True), text, guest.signed(text)]
            if name != "its own" or key == NOTICE_KEY:  # what it says of itself is another question
                forged.append(guest.signed(raw))
            assert not taken(guest, *forged), f"{name} under {key}"
    assert owners(guest, PROGRESS_KEY) == {organizer, victim}
    assert owners(guest, NOTICE_KEY) == {organizer}
    it_goes_on(swarm)


def said(**values: Any) -> Progress:
    return progress(run_id=RUN.run_id, round="", samples=0, **values)


# One record spoils all


@pytest.mark.soak
def test_a_record_that_cannot_be_read_stops_nobody(swarm: Swarm, guest: Hostile) -> None:
    me = pack(guest.signer.subkey)
    for value in (b"\xc1", b"", b"\xc7\x00\x50", b"\xc8\xff\xff\x50", pack({"samples": 1}), b"\x91" * 3000):
        for seconds in (11 * DAY, 50.0):
            for key in (PROGRESS_KEY, CONTRIBUTIONS.key(Names(RUN.run_id)), NOTICE_KEY):
                raw = Raw(key, me, value, time.time() + seconds)
                regular, whole = replace(raw, subkey=pack(None)), replace(raw, subkey=b"")
                assert not taken(guest, raw, guest.signed(raw), regular, replace(guest.signed(raw), cached=True))
                assert not taken(guest, whole)
    assert guest.signer.subkey not in owners(guest, PROGRESS_KEY)
    it_goes_on(swarm)


# Storage without a budget


@pytest.mark.soak
def test_large_records_that_would_stay_for_years_are_not_kept(swarm: Swarm, guest: Hostile) -> None:
    coordinator = swarm.peers[0]
    before, expires = memory_of(coordinator), time.time() + 3 * 365 * DAY
    for number in range(108):
        key = (PROGRESS_KEY, CONTRIBUTIONS.key(Names(RUN.run_id)), f"{RUN.run_id}_{number}")[number % 3]
        length = 400_000 if number < 14 else 1_000_000
        raw = guest.signed(Raw(key, pack(guest.signer.subkey), pack(bytes(length)), expires))
        assert not taken(guest, replace(raw, cached=number % 2 == 0))
    wait_until(
        lambda: memory_of(coordinator) < before + LETTING_GO,
        f"its memory has grown by {(memory_of(coordinator) - before) / 2**20:.0f} MB",
    )
    it_goes_on(swarm)


@pytest.mark.soak
def test_a_record_that_comes_again_and_again_is_kept_once(swarm: Swarm, guest: Hostile) -> None:
    mine = guest.signed(Raw.under(PROGRESS_KEY, guest.signer.subkey, None, 60.0))
    assert taken(guest, mine)
    for _ in range(10):
        assert not taken(guest, *[mine] * 100), "what is kept already is not kept again"
    assert owners(guest, PROGRESS_KEY) >= {guest.signer.subkey}
    it_goes_on(swarm)


def memory_of(peer: Peer) -> int:
    """Bytes that all its processes have in memory."""
    return sum(
        int(line.split()[1]) * 1024
        for process in processes_of(peer.worker.pid)
        for line in Path(f"/proc/{process}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )


# A node that we do not control


@pytest.mark.soak
def test_a_peer_has_one_place_in_the_directory_and_does_not_choose_it(swarm: Swarm, guest: Hostile) -> None:
    key = DHTID.generate(PROGRESS_KEY)
    places = [*(DHTID(key ^ number) for number in range(1, 20)), node_id_of(guest.p2p.peer_id)]

    def known() -> bool:
        """Until it is asked for something and does not answer: so it says again where it is."""
        guest.do(guest.claim(*places), 60.0)
        found = guest.do(guest.nearest(PROGRESS_KEY)).count(guest.peer)
        assert found < 2
        return found == 1

    wait_until(known, "its right place is not known")
    it_goes_on(swarm)


@pytest.mark.soak
def test_a_node_that_hands_out_garbage_hides_nothing(tmp_path: Path) -> None:
    nodes, key, far = [], PROGRESS.key(Names(RUN_ID)), time.time() + 50.0

    def directory(name: str, peers: tuple[str, ...], **how: Any) -> tuple[Directory[Progress], Signer]:
        identity = an_identity(tmp_path / name / "identity.key")
        config = PeerConfig(folder=tmp_path / name, swarm_host="127.0.0.1", **how)
        nodes.append(open_node(config, identity, peers, gate=gate_of(identity)))
        return Directory(nodes[-1], PROGRESS, RUN_ID, reject=pytest.fail), Signer(identity)

    try:
        keeps, holder = directory("holder", ())
        with Hostile(addresses_of(nodes[0]), RUN_ID, tmp_path / "rogue", listens=True) as rogue:
            addresses = rogue.do(rogue.become_node(), 60.0)
            looks, _ = directory("reader", (*addresses_of(nodes[0]), *addresses), client_mode=True)
            keeps.store(holder, progress(), peers=1).result(30.0)
            # The rogue alone has this one, which is right.
            good = rogue.signed(Raw(key, pack(rogue.signer.subkey), pack(progress().model_dump()), far))
            garbage: dict[Any, tuple[Any, float]] = {b"%d" % number: (b"\xc1", far) for number in range(3)}
            beside = {rogue.signer.subkey: (good.value, far), **garbage, holder.subkey: (b"\xc1", far + 1.0)}
            answers: dict[str, tuple[Any, float, bool]] = {
                "garbage beside a good one": (beside, far, True),
                "the same for ever": (beside, math.inf, True),
                "nothing, for ever": ({}, math.inf, False),
                "no dictionary": (b"\xc1", math.inf, False),
                "no dictionary, signed": (good.value, math.inf, False),
                "no times": ({rogue.signer.subkey: (good.value, "x")}, far, False),
                "no values": ({rogue.signer.subkey: (5, far), 5: (b"x", far + 2.0)}, far, False),
                "much": ({b"%d" % number: (b"\xc1", far) for number in range(5000)}, far, False),
            }
            for name, (value, expires, seen) in answers.items():
                rogue.do(rogue.answer(key, value, expires))
                found = set(looks.look(peers=1, timeout=30.0))
                assert found == {holder.peer, *([rogue.peer] if seen else ())}, name
            assert nodes[-1].refused(30.0).total() > 0, "what was not believed is counted"
    finally:
        for node in reversed(nodes):
            node.shutdown()
